"""A learner without torch: trajectory balance on the 27 logits of a `FakePolicy`, by hand, with momentum."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from safetensors.numpy import load_file, save_file

from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import Fraction, NonNegativeFloat, PositiveFloat, Section
from tbactl.errors import CheckpointError, ConfigError
from tbactl.objectives.schedules import training_temperature
from tbactl.protocols import ProbeBatch, UpdateReport
from tbactl.testing.fake_policy import POLICY_FILE, VOCABULARY, FakePolicy
from tbactl.testing.faults import Fault, FaultInjector
from tbactl.types import TrajectoryGroup

STATE_FILE = "fake_learner.safetensors"
# How often a slow update asks whether it should be given up.
ABORT_POLL_S = 0.02

Vector = NDArray[np.float64]


class FakeLearnerOptions(Section):
    """`trainer.options` of the learner `fake`."""

    step_seconds: NonNegativeFloat = 0.0
    """Time one update takes at least."""
    start_seconds: NonNegativeFloat = 0.0
    """Time the constructor takes at least."""
    learning_rate: PositiveFloat = 1.0
    """Of the logits."""
    momentum: Fraction = 0.5
    """Of the gradient; part of what a resume must restore."""
    leak_bytes: Annotated[int, Field(ge=0)] = 0
    """Memory that each update takes and never gives back: what a soak must find."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong, and when."""


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The sufficient numbers of one prompt's K trajectories."""

    rewards: Vector
    """[K]"""
    counts: Vector
    """How often each token occurs in each completion, where EOS was barred and where it was not: [2, K, 27]."""

    def logprobs(self, tables: Vector) -> Vector:
        """Of the completions, by tables [2, 27]: [K]."""
        finite = np.where(np.isfinite(tables), tables, 0.0)  # what was barred does not occur
        return self.counts[0] @ finite[0] + self.counts[1] @ finite[1]

    def scores(self, tables: Vector) -> Vector:
        """Gradients of `logprobs` with respect to the logits, at temperature 1: [K, 27]."""
        lengths = self.counts.sum(axis=2, keepdims=True)
        return (self.counts - lengths * np.exp(tables)[:, None]).sum(axis=0)


class FakeLearner:
    """Implements `Learner` for one rank."""

    def __init__(self, config: ProcessConfig) -> None:
        try:
            self._options = FakeLearnerOptions.model_validate(config.run.trainer.options)
        except ValidationError as error:
            raise ConfigError(
                *(f"trainer.options.{e['loc'][0]}: {e['msg'].lower()}." for e in error.errors())
            ) from error
        if config.run.trainer.num_ranks != 1:
            raise ConfigError(f"trainer.num_ranks = {config.run.trainer.num_ranks}: the learner 'fake' has one rank.")
        self._faults = FaultInjector(self._options.faults)
        time.sleep(self._options.start_seconds)
        self._faults.reach("start")
        self._temperature = training_temperature(config.run.searchers)
        self._min_new_tokens = config.run.searchers.min_new_tokens
        self._policy = FakePolicy.initial(config.policy_directory)
        self._reference = self._policy
        self._moving = config.run.reference
        self._velocity = np.zeros(VOCABULARY)
        self._num_updates = 0
        self._leaked: list[bytes] = []

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        beta: float,
        should_abort: Callable[[], bool],
        reference_exponent: float = 1.0,
    ) -> UpdateReport | None:
        """One step on the trajectory-balance gradient, in reward units, with the VarGrad log Z of each group."""
        self._faults.reach("update")
        if self._is_aborted(should_abort):
            return None
        policy, reference = self._tables(self._policy), self._tables(self._reference)
        gradient = np.zeros(VOCABULARY)
        residuals, kls, log_zs = [], [], []
        loaded = [_load(group, min_new_tokens=self._min_new_tokens) for group in groups]
        for group in loaded:
            logprob, reference_logprob = group.logprobs(policy), group.logprobs(reference)
            log_ratio = logprob - reference_exponent * reference_logprob
            log_z = (group.rewards / beta - log_ratio).mean()
            residual = beta * (log_z + log_ratio) - group.rewards
            score = group.scores(policy) / self._temperature
            gradient += (residual[:, None] * score).mean(axis=0) / len(groups)
            residuals.append(residual)
            kls.append(logprob - reference_logprob)
            log_zs.append(log_z)
        self._velocity = self._options.momentum * self._velocity + gradient
        logits = self._policy.logits - self._options.learning_rate * self._velocity
        self._policy = FakePolicy(logits.astype(np.float32))
        self._num_updates += 1
        if self._options.leak_bytes:
            self._leaked.append(b"\1" * self._options.leak_bytes)
        self._move_reference()
        all_residuals = np.concatenate(residuals)
        metrics = {
            "objective/loss/mean": float(np.square(all_residuals).mean()),
            "objective/residual/rms": float(np.sqrt(np.square(all_residuals).mean())),
            "objective/log_z/mean": float(np.mean(log_zs)),
            "objective/kl/mean": float(np.concatenate(kls).mean()),
            "objective/reward/mean": float(np.concatenate([group.rewards for group in loaded]).mean()),
            "trainer/grad_norm/value": float(np.linalg.norm(gradient)),
            "trainer/learning_rate/value": self._options.learning_rate,
            "trainer/reference_updates/total": float(self._num_reference_updates),
        }
        uids = [trajectory.uid for group in groups for trajectory in group.trajectories]
        return UpdateReport(metrics=metrics, residuals=dict(zip(uids, all_residuals.tolist(), strict=True)))

    def _tables(self, policy: FakePolicy) -> Vector:
        """Log-probs of tokens where EOS is barred, and where it is not: [2, 27]."""
        allowed = (False, True)
        return np.stack([policy.log_probabilities(temperature=self._temperature, allow_eos=eos) for eos in allowed])

    @property
    def _num_reference_updates(self) -> int:
        return 0 if self._moving.kind == "initial" else self._num_updates // self._moving.period

    def _move_reference(self) -> None:
        if self._moving.kind == "initial" or self._num_updates % self._moving.period:
            return
        decay = self._moving.ema_decay if self._moving.kind == "ema" else 0.0
        logits = decay * self._reference.logits + (1.0 - decay) * self._policy.logits
        self._reference = FakePolicy(logits.astype(np.float32))
        if self._moving.kind == "reset" and self._moving.resets_optimizer:
            self._velocity = np.zeros(VOCABULARY)

    def probe_logprobs(self, probe: ProbeBatch) -> list[tuple[float, ...]]:
        """Exact log-probs at temperature 1."""
        table = self._policy.log_probabilities()
        return [tuple(float(table[token]) for token in token_ids[start:]) for token_ids, start in probe.sequences]

    def export_policy(self, directory: Path) -> None:
        """Write the policy so that `FakePolicy.initial` finds it there."""
        directory.mkdir(parents=True, exist_ok=True)
        self._policy.save(directory / POLICY_FILE)
        (directory / "config.json").write_text(json.dumps({"model_type": "fake"}), encoding="utf-8")

    def write_weights(self, path: Path) -> None:
        """Write the logits for the searchers."""
        self._policy.save(path)

    def save(self, directory: Path) -> None:
        """Write logits, reference, velocity and the number of updates."""
        self._faults.reach("save")
        directory.mkdir(parents=True, exist_ok=True)
        state = {
            "logits": self._policy.logits,
            "reference": self._reference.logits,
            "velocity": self._velocity,
            "num_updates": np.array([self._num_updates]),
        }
        save_file(state, directory / STATE_FILE)

    def load(self, directory: Path) -> None:
        """The reverse of `save`.

        Raises:
            CheckpointError: the directory holds no state of this learner.
        """
        path = directory / STATE_FILE
        if not path.is_file():
            raise CheckpointError(f"{directory} holds no state of the learner 'fake' ({STATE_FILE}).")
        state = load_file(path)
        self._policy, self._reference = FakePolicy(state["logits"]), FakePolicy(state["reference"])
        self._velocity = state["velocity"]
        self._num_updates = int(state["num_updates"][0])

    def close(self) -> None:
        """Nothing is held."""

    def _is_aborted(self, should_abort: Callable[[], bool]) -> bool:
        until_s = time.monotonic() + self._options.step_seconds
        while not should_abort():
            rest_s = until_s - time.monotonic()
            if rest_s <= 0:
                return False
            time.sleep(min(rest_s, ABORT_POLL_S))
        return True


def _load(group: TrajectoryGroup, *, min_new_tokens: int) -> _Group:
    tokens = [trajectory.completion.token_ids for trajectory in group.trajectories]
    early, late = [ids[:min_new_tokens] for ids in tokens], [ids[min_new_tokens:] for ids in tokens]
    return _Group(
        rewards=np.array([trajectory.reward for trajectory in group.trajectories]),
        counts=np.stack([_counts(early), _counts(late)]),
    )


def _counts(tokens: Sequence[Sequence[int]]) -> Vector:
    return np.stack([np.bincount(np.array(ids, dtype=int), minlength=VOCABULARY) for ids in tokens]).astype(np.float64)
