"""TRL 1.16's own GRPO and RLOO, run on our tensors.

The trainers are made without their `__init__`, which wants a model, a data set and a tokenizer. Three methods are
replaced by the numbers that they would produce (generation, rewards, forward pass), and there is one process. The rest
is theirs: `_generate_and_score_completions` makes advantages of rewards, `_compute_loss` a loss of advantages and
log-probs.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tbactl.objectives.batch import ObjectiveBatch
from tests.support.objective_batches import random_batch


def sorted_by_group(batch: ObjectiveBatch) -> ObjectiveBatch:
    """TRL finds groups by position: rows of a prompt next to each other, all groups of one size."""
    order = torch.argsort(batch.group_index, stable=True)
    return replace(
        batch,
        policy_logprobs=batch.policy_logprobs.detach()[order].requires_grad_(),
        reference_logprobs=batch.reference_logprobs[order],
        behavior_logprobs=batch.behavior_logprobs[order],
        completion_mask=batch.completion_mask[order],
        rewards=batch.rewards[order],
        group_index=batch.group_index[order],
        num_prompt_tokens=batch.num_prompt_tokens[order],
    )


class _Model:
    """All that the trainers ask of a model: its log-probs of the completions."""

    training = True
    is_gradient_checkpointing = False

    def __init__(self, logprobs: Tensor) -> None:
        self.logprobs = logprobs


class _OneProcess:
    """In place of accelerate's `Accelerator`, which would join the process group of other tests."""

    device = torch.device("cpu")
    process_index, num_processes = 0, 1
    sync_gradients = True

    @staticmethod
    def gather(value: Any) -> Any:
        return value

    @staticmethod
    def reduce(value: Tensor, reduction: str) -> Tensor:
        return value


class _Numbers:
    """What takes the place of generation, rewards and forward pass; and settings, with everything optional off."""

    is_rloo: bool
    environment_factories = environments = tools = None
    pad_to_multiple_of = None
    mask_truncated_completions = use_vllm = log_multimodal = aux_loss_enabled = False
    _entropy_bonus_enabled = False
    top_entropy_quantile = 1.0
    off_policy_mask_threshold = None
    multi_objective_aggregation = "sum_then_normalize"
    importance_sampling_level = "token"
    reward_clip_range = None
    normalize_advantages = False
    reward_func_names = reward_funcs = ("reward",)
    current_gradient_accumulation_steps = 1
    # With more than one update per generation, trainers take log-probs of the policy that generated.
    num_iterations = 2

    def __init__(self, batch: ObjectiveBatch, *, beta: float, clip_low: float, clip_high: float) -> None:
        self.batch = batch
        self.beta, self.epsilon_low, self.epsilon_high = beta, clip_low, clip_high
        self.model, self.ref_model = _Model(batch.behavior_logprobs), _Model(batch.reference_logprobs)
        self.num_generations = len(batch.rewards) // batch.num_groups
        self.max_completion_length = batch.max_completion_tokens
        self.reward_weights = torch.ones(1, dtype=torch.float64)
        self.accelerator = _OneProcess()
        self._tokenizer = SimpleNamespace(pad_token_id=0)
        self._metrics = {"train": defaultdict(list)}
        self._logs: dict[str, Any] = defaultdict(list, rewards=defaultdict(list))
        self._pending_extra_logs, self._pending_metrics = {}, {}
        self.args = SimpleNamespace(
            gradient_accumulation_steps=1,
            gradient_checkpointing_kwargs=None,
            per_device_train_batch_size=len(batch.rewards),
            steps_per_generation=1,
            use_bias_correction_kl=False,
            delta=None,
        )

    def _generate(self, prompts: list[str]) -> tuple[Any, ...]:
        lengths = self.batch.completion_mask.sum(dim=1).tolist()
        completions = [[1] * length for length in lengths]
        if self.is_rloo:
            return [[1]] * len(prompts), completions, [""] * len(prompts)
        return [[1]] * len(prompts), completions, None, [""] * len(prompts), None, {}, None, None

    def _calculate_rewards(self, *_: Any) -> Tensor:
        return self.batch.rewards[:, None]

    def _get_per_token_logps_and_entropies(
        self, model: _Model, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor, None]:
        logprobs = model.logprobs[:, :logits_to_keep]
        return logprobs, torch.zeros_like(logprobs), None

    def loss(self: Any) -> Tensor:
        gathered: dict[str, Any] = {
            name: _OneProcess.gather for name in ("gather", "gather_object") if hasattr(self.module, name)
        }
        with patch.multiple(self.module, **gathered):
            inputs = self._generate_and_score_completions([{"prompt": ""} for _ in self.batch.rewards])
            return self._compute_loss(_Model(self.batch.policy_logprobs), inputs)


@cache
def _trainers() -> tuple[type[Any], type[Any]]:
    """GRPO and RLOO with the numbers of a batch. Importing TRL takes seconds: only when a test needs it."""
    with warnings.catch_warnings():
        # It warns of versions of vLLM that it was not tested with; nothing here uses vLLM.
        warnings.simplefilter("ignore")
        from trl.trainer import grpo_trainer, rloo_trainer
    grpo = type("NumbersGrpo", (_Numbers, grpo_trainer.GRPOTrainer), {"is_rloo": False, "module": grpo_trainer})
    rloo = type("NumbersRloo", (_Numbers, rloo_trainer.RLOOTrainer), {"is_rloo": True, "module": rloo_trainer})
    return grpo, rloo


def grpo_loss(
    batch: ObjectiveBatch,
    *,
    loss_type: str,
    beta: float,
    scale_rewards: str = "group",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> Tensor:
    """What `GRPOTrainer` minimises: data of the behaviour policy, rows sorted by group, as many in each."""
    trainer = _trainers()[0](batch, beta=beta, clip_low=clip_low, clip_high=clip_high)
    trainer.loss_type, trainer.scale_rewards = loss_type, scale_rewards
    return trainer.loss()


def rloo_loss(batch: ObjectiveBatch, *, beta: float, clip_low: float = 0.2, clip_high: float = 0.2) -> Tensor:
    """What `RLOOTrainer` minimises: data of the behaviour policy, rows sorted by group, as many in each."""
    return _trainers()[1](batch, beta=beta, clip_low=clip_low, clip_high=clip_high).loss()


def equal_groups(size: int, *, num_groups: int = 3, seed: int = 0) -> ObjectiveBatch:
    """A random batch that TRL can be given; a third of the tokens is near enough to the behaviour not to be clipped.

    Sizes of 2, 3 and 5 keep its float32 factor K / (K - 1) exact.
    """
    batch = sorted_by_group(random_batch([size] * num_groups, num_tokens=7, seed=seed))
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randn(batch.behavior_logprobs.shape, generator=generator, dtype=torch.float64) * 0.4
    return replace(batch, behavior_logprobs=batch.policy_logprobs.detach() + spread)


def assert_same_loss_and_gradient(actual: Tensor, expected: Tensor, batch: ObjectiveBatch) -> None:
    """To float64 rounding."""
    (ours,) = torch.autograd.grad(actual, batch.policy_logprobs)
    (theirs,) = torch.autograd.grad(expected, batch.policy_logprobs)
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
