"""DeepSpeed, and nothing else that knows of it: engine, ZeRO stages, gradient accumulation, its checkpoints.

What it hides:
- Accumulation is ours: micro-batches of a step differ in number, so the boundary is set by hand and losses are not
  divided by a number of accumulation steps.
- DeepSpeed averages gradients over ranks; our losses already add up to the mean over the whole step. So a rank's loss
  is multiplied by the number of ranks.
- The learning-rate schedule moves after the optimizer step: the first update uses its first value, not its second.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils.tensor_fragment import fragment_address, tensor_fragment
from torch import Tensor

from tbactl.checkpoints.consolidate import SHARDS
from tbactl.config.sections import RunConfig
from tbactl.engines.learning_rates import new_schedule
from tbactl.errors import CheckpointError, TbactlError
from tbactl.trainer.collate import MicroBatch
from tbactl.trainer.scoring import ScoringModel

# An extension for all-reduces of several ranks through shared memory. It takes a compiler and a minute, and its
# segments would not be ours to remove; gloo does the work.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False

ADAM_EPSILON = 1e-8

# What DeepSpeed pickles besides tensors and plain values.
SAFE_CLASSES: list[Any] = [LossScaler, ZeroStageEnum, fragment_address, tensor_fragment]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What an optimizer step did."""

    grad_norm: float
    """L2 norm before clipping, over all ranks."""
    learning_rate: float
    """The one that this step used."""


class DeepSpeedBackend:
    """A DeepSpeed engine around a scoring model. All ranks call every method, in the same order.

    Args:
        model: what is trained; DeepSpeed takes it over (under ZeRO-3 its parameters are empty outside of its calls).
        run: the settings.

    Raises:
        ConfigError: the schedule refuses its options.
    """

    def __init__(self, model: ScoringModel, *, run: RunConfig) -> None:
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        # Single-rank runs use no MPI: without this DeepSpeed looks for it.
        os.environ.setdefault("LOCAL_RANK", "0")
        # Torch has renamed collectives that DeepSpeed calls by their old names, at every pass.
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
        trainer = run.trainer
        self._num_ranks = trainer.num_ranks
        self._zero_stage = trainer.zero_stage
        self._learns_log_z = model.log_z_head is not None
        optimizer = torch.optim.AdamW(
            _parameter_groups(model),
            lr=trainer.learning_rate,
            betas=trainer.adam_betas,
            eps=ADAM_EPSILON,
            weight_decay=trainer.weight_decay,
        )
        schedule = new_schedule(
            trainer.lr_schedule,
            optimizer,
            warmup_steps=trainer.warmup_steps,
            max_steps=trainer.max_steps,
            options=trainer.lr_schedule_options,
            section="trainer",
        )
        deepspeed.init_distributed(dist_init_required=False, verbose=False)
        # Untyped: DeepSpeed's annotations do not cover what it accepts and returns.
        self._engine: Any = deepspeed.initialize(
            model=model,
            optimizer=optimizer,
            lr_scheduler=schedule,  # pyright: ignore[reportArgumentType]
            config=engine_settings(run),
        )[0]
        if self._zero_stage == 3:
            # The head is used outside of its own forward: gather it with the whole.
            for parameter in model.head.parameters():
                deepspeed.zero.register_external_parameter(model, parameter)

    @property
    def device(self) -> torch.device:
        """Where batches must lie."""
        return torch.device(self._engine.device)

    def logprobs(self, batch: MicroBatch, *, temperature: float | None = None) -> Tensor:
        """Policy log-probs, with gradients unless they are switched off around the call."""
        return self._engine(batch, temperature=temperature)

    def score(self, batch: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """Policy log-probs, and log Z of each prompt where it is learned; both with gradients."""
        if self._learns_log_z:
            return self._engine(batch, with_log_z=True)
        return self.logprobs(batch), None

    def backward(self, loss: Tensor, *, is_last: bool) -> None:
        """Add the gradients of one micro-batch; with the last one they are reduced over ranks."""
        self._engine.set_gradient_accumulation_boundary(is_last)
        self._engine.backward(loss * self._num_ranks, scale_wrt_gas=False)

    def discard(self) -> None:
        """Drop the gradients added so far."""
        optimizer = self._engine.optimizer
        (optimizer if self._zero_stage else self._engine).zero_grad()

    def step(self) -> StepReport:
        """Clip, update the weights, clear gradients, move the schedule.

        Raises:
            TbactlError: the gradient is not finite; the weights are no longer usable.
        """
        learning_rate = float(self._engine.get_lr()[0])
        grad_norm = self._local_norm() if self._zero_stage == 0 else None
        self._engine.step()
        if grad_norm is None:
            grad_norm = float(self._engine.get_global_grad_norm() or 0.0)
        if not math.isfinite(grad_norm):
            raise TbactlError(
                f"the gradient's norm is {grad_norm}: the policy has diverged. Lower trainer.learning_rate or "
                f"trainer.max_grad_norm and resume from the last checkpoint."
            )
        return StepReport(grad_norm=grad_norm, learning_rate=learning_rate)

    @property
    def num_steps(self) -> int:
        """Optimizer steps done since the run began, those before a resume included."""
        return int(self._engine.global_steps)

    @torch.no_grad()
    def forget_averages(self) -> None:
        """Make AdamW as it was before its first step: no moments, and their bias corrected from the start."""
        for state in self._engine.basic_optimizer.state.values():
            for value in state.values():
                value.zero_()

    def _local_norm(self) -> float | None:
        """Stage 0 in float32: gradients are whole on every rank, and DeepSpeed does not report their norm."""
        gradients = [parameter.grad for parameter in self._engine.module.parameters() if parameter.grad is not None]
        if not gradients or hasattr(self._engine.optimizer, "_global_grad_norm"):
            return None
        return float(torch.nn.utils.get_total_norm(gradients))

    @contextlib.contextmanager
    def whole_parameters(self, parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
        """Inside, parameters are complete on every rank. They must not be changed."""
        if self._zero_stage < 3:
            yield
            return
        with deepspeed.zero.GatheredParameters(list(parameters)):
            yield

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and schedule in DeepSpeed's form."""
        with _quiet():
            self._engine.save_checkpoint(str(directory), tag=SHARDS, save_latest=False)

    def load(self, directory: Path) -> None:
        """The reverse of `save`. Only tensors and plain values are unpickled.

        Raises:
            CheckpointError: it is of another number of ranks or ZeRO stage, or damaged.
        """
        with _weights_only(), _quiet():
            try:
                path, _ = self._engine.load_checkpoint(str(directory), tag=SHARDS)
            except Exception as error:
                raise CheckpointError(
                    f"{directory}: DeepSpeed cannot load it: {type(error).__name__}: {error}. Number of ranks and "
                    f"ZeRO stage must be those of the run that wrote it."
                ) from error
        if path is None:
            raise CheckpointError(f"{directory} holds no DeepSpeed checkpoint.")

    def close(self) -> None:
        """Let go of the engine."""
        self._engine.destroy()


def _parameter_groups(model: ScoringModel) -> list[dict[str, Any]]:
    """The policy's parameters, then those of a learned log Z with their own learning rate and without decay."""
    groups: list[dict[str, Any]] = [{"params": [p for p in model.policy.parameters() if p.requires_grad]}]
    if model.log_z_head is not None:
        head = model.log_z_head
        groups.append({"params": list(head.parameters()), "lr": head.learning_rate, "weight_decay": 0.0})
    return groups


def engine_settings(run: RunConfig) -> dict[str, Any]:
    """DeepSpeed's JSON. Batch sizes are formal: it checks that they agree, we accumulate by ourselves."""
    trainer = run.trainer
    return {
        "train_batch_size": trainer.num_ranks,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": trainer.max_grad_norm,
        "zero_optimization": {"stage": trainer.zero_stage, "overlap_comm": False},
        "bf16": {"enabled": run.policy.dtype == "bfloat16"},
        # The optimizer is torch's, made here.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
    }


@contextlib.contextmanager
def _weights_only() -> Iterator[None]:
    """DeepSpeed unpickles its files without restriction; torch can be told to allow tensors and plain values only."""
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        with torch.serialization.safe_globals(SAFE_CLASSES):
            yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("DeepSpeed")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def accelerator_device() -> torch.device:
    """The device that DeepSpeed computes on: this process's accelerator, or the CPU."""
    accelerator: Any = get_accelerator()
    if accelerator.device_name() == "cpu":
        return torch.device("cpu")
    return torch.device(accelerator.current_device_name())
