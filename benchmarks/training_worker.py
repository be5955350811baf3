"""One contestant of benchmarks/trainer_speed.py, TRL's apart: one optimizer step when it is asked.

tbactl         the learner as the trainer drives it
deepspeed      forward, loss and backward of the same micro-batches in a plain loop over DeepSpeed's engine
torch          the same loop with torch alone: the bare loop on the same work, matrix products included
torch-padded   a loop as one writes it first: a row for each trajectory, logits of the whole vocabulary
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
from torch import Tensor
from torch.distributed import HashStore, init_process_group  # pyright: ignore[reportPrivateImportUsage]
from transformers import AutoModelForCausalLM

from benchmarks.measuring import Stopwatch, serve
from benchmarks.training_work import BETA, GROUP_SIZE, KINDS, make_batch, num_completion_tokens, trainer_config
from tbactl.config.layout import ProcessConfig
from tbactl.matmul import use_full_vector_width
from tbactl.trainer.collate import MicroBatch, collate
from tbactl.trainer.deepspeed_backend import DeepSpeedBackend
from tbactl.trainer.layout import plan_micro_batches
from tbactl.trainer.learner import DeepSpeedLearner
from tbactl.trainer.scoring import ScoringModel
from tbactl.types import TrajectoryGroup

Step = Callable[[Sequence[TrajectoryGroup]], None]
"""One optimizer step; reference log-probs are computed at the first one with a trajectory's uid, then remembered."""


def main() -> None:
    """Load the contestant, then take turns."""
    name, descriptor = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as scratch:
        step = CONTESTANTS[name](trainer_config(Path(scratch)))
        serve(lambda asked: _measure(step, **asked), descriptor=descriptor)


def _measure(step: Step, *, kind: str, num_groups: int, seed: int, is_fresh: bool) -> dict[str, float]:
    # Fresh batches have new uids, remembered ones those of their first time.
    first_uid = (1000 * KINDS.index(kind) + (1 + seed if is_fresh else 0)) * 10**6
    groups = make_batch(kind, num_groups=num_groups, seed=seed, first_uid=first_uid)
    watch = Stopwatch()
    step(groups)
    return watch.seconds() | {"tokens": num_completion_tokens(groups)}


def of_learner(config: ProcessConfig) -> Step:
    """The real thing."""
    learner = DeepSpeedLearner(config)

    def step(groups: Sequence[TrajectoryGroup]) -> None:
        assert learner.update(groups, beta=BETA, should_abort=lambda: False) is not None

    return step


def of_backend(config: ProcessConfig) -> Step:
    """DeepSpeed's engine around our scoring model, without the learner."""
    use_full_vector_width()
    # Only for its process group: DeepSpeed wants one.
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    backend = DeepSpeedBackend(_scoring_model(config), run=config.run)
    return _loop(config, logprobs=backend.logprobs, backward=backend.backward, finish=backend.step)


def of_torch(config: ProcessConfig) -> Step:
    """The same model and work with torch's own autograd and optimizer."""
    use_full_vector_width()
    model = _scoring_model(config)
    optimizer = _optimizer(model, config)

    def backward(loss: Tensor, *, is_last: bool) -> None:
        del is_last
        loss.backward()

    return _loop(config, logprobs=model, backward=backward, finish=lambda: _finish(model, optimizer, config))


def _loop(
    config: ProcessConfig,
    *,
    logprobs: Callable[[MicroBatch], Tensor],
    backward: Callable[..., None],
    finish: Callable[[], Any],
) -> Step:
    reference = _scoring_model(config).requires_grad_(False)
    remembered: dict[int, Tensor] = {}  # by the first uid of a pass

    def step(groups: Sequence[TrajectoryGroup]) -> None:
        plan = plan_micro_batches(
            groups, num_ranks=1, budget_tokens=config.run.trainer.micro_batch_tokens, shares_prompt=True
        )[0]
        for number, indexes in enumerate(plan):
            batch = collate([groups[index] for index in indexes], shares_prompt=True)
            first = batch.uids[0]
            if first not in remembered:
                with torch.no_grad():
                    remembered[first] = reference(batch)
            log_ratio = (logprobs(batch) - remembered[first]).sum(dim=1)
            loss = balance_loss(log_ratio, batch.rewards) / len(groups) * batch.num_groups
            backward(loss, is_last=number == len(plan) - 1)
        finish()

    return step


def of_torch_padded(config: ProcessConfig) -> Step:
    """Rows of prompt and completion, padded; log-softmax over the whole vocabulary."""
    model, reference = _plain_model(config), _plain_model(config).requires_grad_(False)
    optimizer = _optimizer(model, config)
    remembered: dict[int, Tensor] = {}  # by the first uid of a pass

    def step(groups: Sequence[TrajectoryGroup]) -> None:
        for group in groups:
            ids, mask, rewards = _rows(group)
            first = group.trajectories[0].uid
            if first not in remembered:
                with torch.no_grad():
                    remembered[first] = _row_logprobs(reference, ids, mask)
            log_ratio = _row_logprobs(model, ids, mask) - remembered[first]
            (balance_loss(log_ratio, rewards) / len(groups)).backward()
        _finish(model, optimizer, config)

    return step


def balance_loss(log_ratio: Tensor, rewards: Tensor) -> Tensor:
    """VarGrad's trajectory balance of whole groups of GROUP_SIZE; log Z is each group's mean."""
    residual = (log_ratio - rewards / BETA).view(-1, GROUP_SIZE)
    return 0.5 * BETA * (residual - residual.mean(dim=1, keepdim=True).detach()).square().mean()


def _rows(group: TrajectoryGroup) -> tuple[Tensor, Tensor, Tensor]:
    prompt = list(group.prompt_token_ids)
    completions = [list(t.completion.token_ids) for t in group.trajectories]
    longest = max(map(len, completions))
    ids = torch.tensor([prompt + row + [0] * (longest - len(row)) for row in completions])
    mask = torch.arange(longest) < torch.tensor([len(row) for row in completions])[:, None]
    return ids, mask, torch.tensor([t.reward for t in group.trajectories])


def _row_logprobs(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    num_tokens = mask.shape[1]
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=num_tokens + 1).logits[:, :-1]
    logprobs = logits.float().log_softmax(dim=-1).gather(-1, ids[:, -num_tokens:, None]).squeeze(-1)
    return (logprobs * mask).sum(dim=1)


def _plain_model(config: ProcessConfig) -> Any:
    return AutoModelForCausalLM.from_pretrained(config.policy_directory, dtype=torch.float32)


def _scoring_model(config: ProcessConfig) -> ScoringModel:
    return ScoringModel(
        _plain_model(config),
        temperature=config.run.searchers.temperature,
        chunk_tokens=config.run.trainer.logprob_chunk_tokens,
    )


def _optimizer(model: torch.nn.Module, config: ProcessConfig) -> torch.optim.Optimizer:
    trainer = config.run.trainer
    return torch.optim.AdamW(
        model.parameters(), lr=trainer.learning_rate, betas=trainer.adam_betas, weight_decay=trainer.weight_decay
    )


def _finish(model: torch.nn.Module, optimizer: torch.optim.Optimizer, config: ProcessConfig) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.run.trainer.max_grad_norm)
    optimizer.step()
    optimizer.zero_grad()


CONTESTANTS: dict[str, Callable[[ProcessConfig], Step]] = {
    "tbactl": of_learner,
    "deepspeed": of_backend,
    "torch": of_torch,
    "torch-padded": of_torch_padded,
}


if __name__ == "__main__":
    main()
