"""The training loop: stages one after the other, checkpoints, resuming.

A resumed run ends with the same weights as an uninterrupted one on the same machine, as long as the model draws no
random numbers in training (no dropout, as in Llama).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tbactl.clock import Clock
from tbactl.config.sections import SftConfig, SftStage
from tbactl.engines.learning_rates import new_schedule
from tbactl.sft import checkpoint
from tbactl.sft.checkpoint import Progress
from tbactl.sft.examples import IGNORED_LABEL, ExampleSource, ExampleStream, MicroBatch, micro_batches, mixed_texts
from tbactl.sft.model import initial_policy, load_policy

logger = logging.getLogger(__name__)

_LOG_PERIOD_S = 10.0


def train(config: SftConfig, *, source: ExampleSource, clock: Clock, resume: bool = False) -> Path:
    """Run all stages and write the finished policy; returns its directory.

    Args:
        config: what to train, on what.
        source: the task's examples by (kind, seed).
        clock: for progress lines and the checkpoint period.
        resume: continue at the last finished checkpoint of the output directory.

    Raises:
        CheckpointError: `resume` without a usable checkpoint.
        ConfigError: the policy to start from cannot be loaded, `architecture` has an unknown field, or a schedule
            refuses its options.
        TaskError: the task offers no such examples, or all are too long.
    """
    output = config.runs_dir / config.name
    checkpoints = output / "checkpoints"
    checkpoints.mkdir(parents=True, exist_ok=True)
    progress, resumed_from = Progress(), None
    if resume:
        resumed_from = checkpoint.latest_checkpoint(checkpoints)
        progress = checkpoint.read_progress(resumed_from)
        model, tokenizer = load_policy(resumed_from)
        logger.info("resume checkpoint=%s", resumed_from.name)
    else:
        model, tokenizer = initial_policy(config, source=source)
    _use_best_device(model)
    logger.info("policy parameters=%d vocabulary=%d", model.num_parameters(), len(tokenizer))
    for index in range(progress.stage, len(config.stages)):
        stage_progress = progress if index == progress.stage else Progress(stage=index)
        run = StageRun(
            config, progress=stage_progress, model=model, tokenizer=tokenizer, source=source, checkpoints=checkpoints
        )
        if resumed_from is not None and stage_progress.step > 0:
            run.restore(resumed_from)
        run.finish(clock=clock)
    policy = output / "policy"
    checkpoint.write_policy(policy, model=model.to(getattr(torch, config.export_dtype)), tokenizer=tokenizer)
    logger.info("finished policy=%s", policy)
    return policy


def _use_best_device(module: torch.nn.Module) -> None:
    module.to("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStatistics:
    """Of one optimizer step. `loss` is the mean over completion tokens, EOS included, in nats."""

    loss: float
    grad_norm: float
    num_tokens: int


class StageRun:
    """One stage of training: owns its optimizer, schedule and example stream."""

    def __init__(
        self,
        config: SftConfig,
        *,
        progress: Progress,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        source: ExampleSource,
        checkpoints: Path,
    ) -> None:
        self.stage: SftStage = config.stages[progress.stage]
        self.stage_index = progress.stage
        self.step = progress.step
        self.num_steps = math.ceil(self.stage.num_tokens / config.batch_tokens)
        self._scheduler_state = progress.scheduler
        self._config = config
        self._model = model
        self._tokenizer = tokenizer
        self._checkpoints = checkpoints
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=self.stage.learning_rate,
            betas=self.stage.adam_betas,
            weight_decay=self.stage.weight_decay,
            fused=True,
        )
        self._scheduler = new_schedule(
            self.stage.lr_schedule,
            self._optimizer,
            warmup_steps=round(self.stage.warmup_fraction * self.num_steps),
            max_steps=self.num_steps,
            options=self.stage.lr_schedule_options,
            section=f"stages.{self.stage_index}",
        )
        seed = config.seed + 1_000_003 * (progress.stage + 1)
        self._stream = ExampleStream(
            mixed_texts(source, mixture=self.stage.mixture, seed=seed),
            tokenizer=tokenizer,
            max_tokens=config.max_tokens,
            skip=progress.num_drawn,
        )

    def restore(self, directory: Path) -> None:
        """Take optimizer and schedule from the checkpoint that this run's progress came from."""
        checkpoint.load_optimizer(directory, optimizer=self._optimizer)
        self._scheduler.load_state_dict(self._scheduler_state)

    def finish(self, *, clock: Clock) -> None:
        """Train until the stage's last step, logging and writing checkpoints on the way."""
        started = logged = saved = clock.monotonic_s()
        first_step = self.step
        window: list[StepStatistics] = []
        for statistics in self.steps():
            window.append(statistics)
            now = clock.monotonic_s()
            is_last = self.step == self.num_steps
            if is_last or now - logged >= _LOG_PERIOD_S:
                eta_s = (now - started) / (self.step - first_step) * (self.num_steps - self.step)
                self._log(window, seconds=now - logged, eta_s=eta_s)
                logged, window = now, []
            if is_last or now - saved >= self._config.checkpoint_period_s:
                self.save(f"{self.stage_index}-{self.stage.name}" if is_last else None)
                saved = clock.monotonic_s()

    def steps(self) -> Iterator[StepStatistics]:
        """One optimizer step for each item taken."""
        self._model.train()
        while self.step < self.num_steps:
            yield self._optimizer_step()

    def save(self, name: str | None = None) -> Path:
        """Write a checkpoint of this very moment; only a named one outlives the next."""
        progress = Progress(
            stage=self.stage_index,
            step=self.step,
            num_drawn=self._stream.num_drawn,
            scheduler=self._scheduler.state_dict(),
        )
        return checkpoint.write_checkpoint(
            self._checkpoints,
            name=name,
            model=self._model,
            tokenizer=self._tokenizer,
            optimizer=self._optimizer,
            progress=progress,
        )

    def _optimizer_step(self) -> StepStatistics:
        examples = self._stream.next_step(self._config.batch_tokens)
        num_labels = sum(len(example.token_ids) - example.prompt_length for example in examples)
        total_loss = 0.0
        for batch in micro_batches(examples, max_tokens=self._config.micro_batch_tokens):
            loss = completion_loss(self._model, batch, dtype=getattr(torch, self._config.computation_dtype))
            (loss / num_labels).backward()
            total_loss += loss.item()
        limit = self._config.max_grad_norm or math.inf
        grad_norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), limit).item()
        self._optimizer.step()
        self._scheduler.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        num_tokens = sum(len(example.token_ids) for example in examples)
        return StepStatistics(loss=total_loss / num_labels, grad_norm=grad_norm, num_tokens=num_tokens)

    def _log(self, window: list[StepStatistics], *, seconds: float, eta_s: float) -> None:
        logger.info(
            "stage=%s step=%d/%d loss=%.4f grad_norm=%.2f lr=%.2e tokens_per_s=%.0f too_long=%d eta_s=%.0f",
            self.stage.name,
            self.step,
            self.num_steps,
            sum(item.loss for item in window) / len(window),
            sum(item.grad_norm for item in window) / len(window),
            self._scheduler.get_last_lr()[0],
            sum(item.num_tokens for item in window) / max(seconds, 1e-9),
            self._stream.num_too_long,
            eta_s,
        )


def completion_loss(model: PreTrainedModel, batch: MicroBatch, *, dtype: torch.dtype) -> torch.Tensor:
    """Sum over the batch's labels of -log p(token), in nats; float32 scalar."""
    device = model.device
    labels = batch.labels[:, batch.first_label :].to(device)
    positions = torch.arange(batch.first_label, batch.labels.shape[1], device=device)
    with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
        logits = model(input_ids=batch.input_ids.to(device), use_cache=False, logits_to_keep=positions).logits
    return functional.cross_entropy(
        logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
    )
