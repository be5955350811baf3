"""Which groups of the replay buffer are trained on. Draws depend on the buffer's history and the given generator alone.

    name            prompt                          K trajectories of the prompt
    --------------  ------------------------------  -------------------------------------------------------------
    recency         fresh ones, newest first        fresh ones uniformly, then the newest others
    uniform         each in turn                    uniformly
    reward-softmax  each in turn                    p proportional to exp(inverse_temperature * reward)
    residual        each in turn                    p proportional to |VarGrad residual| ^ residual_exponent
    mixture         for each prompt, `recency` with probability m, otherwise one of the other three; or for each
                    trajectory of a prompt

A sampler is a value without state: what has a schedule is given to a new sampler for each policy version.

Before this file on the way of a trajectory: `buffer.py`. After it: the trainer's collation.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from tbactl.config.sections import ReplaySection
from tbactl.replay.buffer import MIN_GROUP_SIZE, ReplayBuffer
from tbactl.replay.stored_prompt import StoredPrompt
from tbactl.replay.weighting import Weighting
from tbactl.types import TrajectoryGroup

Prioritization = Literal["uniform", "reward-softmax", "residual"]
Mixing = Literal["by-prompt", "by-trajectory"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """What all samplers share: how a batch comes about. Base class of the registry group `tbactl.samplers`.

    A batch holds a prompt twice only when it wants more prompts than there are. Prompts with fewer than two distinct
    trajectories are never drawn. A prompt with n < K trajectories gives each once, and K - n more with replacement by
    the same probabilities, so that copies of the best one alone, whose residuals are all zero, cannot fill a group.
    (The reference code draws all K with replacement then.)

    Example:
        sampler = MixtureSampler(on_policy_fraction=0.95, prioritization="uniform")
        groups = sampler.select(buffer, num_prompts=16, num_per_prompt=8, policy_version=3, rng=rng)

    Attributes:
        max_staleness: Trajectories more optimizer steps old than this are removed before a draw; None keeps all.
    """

    max_staleness: int | None = None

    @classmethod
    @abstractmethod
    def from_section(cls, section: ReplaySection) -> Self:
        """The sampler of a run; settings with a schedule at their values of now."""

    @abstractmethod
    def draw_group(
        self, buffer: ReplayBuffer, *, num_per_prompt: int, in_batch: set[int], rng: np.random.Generator
    ) -> TrajectoryGroup:
        """Draw one prompt that is not in the batch, of which there is at least one, and K of its trajectories."""

    def select(
        self,
        buffer: ReplayBuffer,
        *,
        num_prompts: int,
        num_per_prompt: int,
        policy_version: int,
        rng: np.random.Generator,
    ) -> list[TrajectoryGroup]:
        """Draw a batch: `num_prompts` (B) groups of `num_per_prompt` (K >= 2) trajectories.

        Uses are recorded in the buffer, as a batch that can be undone until it is committed. Empty when no prompt has
        two trajectories that may be drawn.
        """
        assert num_per_prompt >= MIN_GROUP_SIZE
        if self.max_staleness is not None:
            buffer.expire(oldest_version=policy_version - self.max_staleness)
        buffer.begin_batch()
        groups: list[TrajectoryGroup] = []
        in_batch: set[int] = set()
        while len(groups) < num_prompts and buffer.num_eligible_prompts:
            if len(in_batch) == buffer.num_eligible_prompts:
                in_batch.clear()
            group = self.draw_group(buffer, num_per_prompt=num_per_prompt, in_batch=in_batch, rng=rng)
            in_batch.add(group.prompt_id)
            groups.append(group)
        return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSampler(Sampler):
    """Most recent data with probability m, else any data: the batch selection of TBA, section 4.2 of arXiv 2503.18929.

    For each of the B prompts of a batch one coin falls. With `mixing = "by-trajectory"` it says where the prompt comes
    from only, and each of its K trajectories has a coin of its own: VarGrad compares the trajectories of a group with
    one another, so recent ones and good old ones must meet in a group for the good ones to gain on the recent.

    **Recency** (probability `on_policy_fraction`). A prompt is *fresh* from an insertion until it is next drawn,
    however many insertions, syncs and batches go by. Fresh prompts come first, among these the one with the newest
    policy version, among equals a uniform choice. When all fresh prompts are used up, the others follow by newest
    version in the same way. Of the prompt, K are drawn uniformly from its fresh trajectories; where these are fewer
    than K, its newest others fill up to K. (In the reference code recency ends at the next sync, used or not.)

    **Whole buffer** (otherwise). A prompt is drawn uniformly without replacement from all, over batches too: each has
    its turn once before any has it again. Of the prompt, K are drawn successively and without replacement (Gumbel
    top-k, arXiv 1903.06059), by `prioritization`:

    * `uniform`: all with the same p;
    * `reward-softmax`: p proportional to exp(inverse_temperature * reward);
    * `residual`: p proportional to |residual| ^ residual_exponent, with the VarGrad residual (eq. 3) of the last step
      that trained on the trajectory, as prioritised replay does with the temporal difference error (arXiv 1511.05952).
      One that was never trained on counts as the largest residual of its prompt: nothing is known of it, so the most
      may be learned from it, and anything less could leave it undrawn, and thus unknown, for ever. Where all residuals
      are zero, or none is known, all have the same p.

    Attributes:
        on_policy_fraction: m, in [0, 1].
        mixing: What has a coin.
        prioritization: How the whole buffer's trajectories are weighed within a prompt.
        inverse_temperature: Of the reward softmax, >= 0; 0 is uniform, large takes the best.
        residual_exponent: Of the draw by residual, >= 0; 0 is uniform.
    """

    on_policy_fraction: float
    mixing: Mixing = "by-prompt"
    prioritization: Prioritization = "uniform"
    inverse_temperature: float = 1.0
    residual_exponent: float = 1.0

    @classmethod
    def from_section(cls, section: ReplaySection) -> Self:
        """The mixture that a run is configured for."""
        return cls._of(section, on_policy_fraction=section.on_policy_fraction, prioritization=section.prioritization)

    @classmethod
    def _of(cls, section: ReplaySection, *, on_policy_fraction: float, prioritization: Prioritization) -> Self:
        return cls(
            on_policy_fraction=on_policy_fraction,
            mixing=section.mixing,
            prioritization=prioritization,
            inverse_temperature=section.inverse_temperature,
            residual_exponent=section.residual_exponent,
            max_staleness=section.max_staleness,
        )

    def draw_group(
        self, buffer: ReplayBuffer, *, num_per_prompt: int, in_batch: set[int], rng: np.random.Generator
    ) -> TrajectoryGroup:
        """Throw the coin, then draw."""
        is_recent = rng.random() < self.on_policy_fraction
        prompt_id = buffer.recency.draw(rng, excluded=in_batch) if is_recent else self._draw_any(buffer, in_batch, rng)
        num_recent = num_per_prompt if is_recent else 0
        if self.mixing == "by-trajectory":
            num_recent = int(rng.binomial(num_per_prompt, self.on_policy_fraction))
        chosen = self._choose(buffer.prompts[prompt_id], num_per_prompt, num_recent=num_recent, rng=rng)
        return buffer.draw(prompt_id, chosen)

    def _choose(self, prompt: StoredPrompt, num_chosen: int, *, num_recent: int, rng: np.random.Generator) -> list[int]:
        if num_recent == num_chosen:
            return prompt.choose_recent(num_chosen, rng)
        if num_recent == 0 or len(prompt) <= num_chosen:
            return self._choose_any(prompt, num_chosen, rng)
        recent = prompt.choose_recent(num_recent, rng)
        # Successive draws: without the recent ones among them, what is left is a draw from the others.
        others = [slot for slot in self._choose_any(prompt, num_chosen, rng) if slot not in recent]
        return recent + others[: num_chosen - num_recent]

    @staticmethod
    def _draw_any(buffer: ReplayBuffer, in_batch: set[int], rng: np.random.Generator) -> int:
        # A prompt that recency brought into this batch has had its turn; fewer than all are in the batch, so this ends.
        while (prompt_id := buffer.urn.draw(rng)) in in_batch:
            pass
        return prompt_id

    def _choose_any(self, prompt: StoredPrompt, num_chosen: int, rng: np.random.Generator) -> list[int]:
        if self.prioritization == "reward-softmax":
            return prompt.choose_weighted(Weighting(kind="reward", scale=self.inverse_temperature), num_chosen, rng)
        if self.prioritization == "residual":
            return prompt.choose_weighted(Weighting(kind="residual", scale=self.residual_exponent), num_chosen, rng)
        return prompt.choose_uniform(num_chosen, rng)


class RecencySampler(MixtureSampler):
    """The most recent data alone: the mixture with m = 1."""

    @classmethod
    def from_section(cls, section: ReplaySection) -> Self:
        """Whatever m is configured."""
        return cls._of(section, on_policy_fraction=1.0, prioritization="uniform")


class UniformSampler(MixtureSampler):
    """The whole buffer alone, each trajectory of a prompt alike: the mixture with m = 0."""

    @classmethod
    def from_section(cls, section: ReplaySection) -> Self:
        """Whatever m and prioritization are configured."""
        return cls._of(section, on_policy_fraction=0.0, prioritization="uniform")


class RewardSoftmaxSampler(MixtureSampler):
    """The whole buffer alone, by reward: the mixture with m = 0."""

    @classmethod
    def from_section(cls, section: ReplaySection) -> Self:
        """Whatever m and prioritization are configured."""
        return cls._of(section, on_policy_fraction=0.0, prioritization="reward-softmax")


class ResidualSampler(MixtureSampler):
    """The whole buffer alone, by VarGrad residual: the mixture with m = 0."""

    @classmethod
    def from_section(cls, section: ReplaySection) -> Self:
        """Whatever m and prioritization are configured."""
        return cls._of(section, on_policy_fraction=0.0, prioritization="residual")
