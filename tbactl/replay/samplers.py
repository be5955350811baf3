"""Which groups of the replay buffer are trained on. Draws depend on the buffer's history and the given generator alone.

Before this file on the way of a trajectory: `buffer.py`. After it: the trainer's collation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tbactl.replay.buffer import MIN_GROUP_SIZE, ReplayBuffer
from tbactl.replay.entries import StoredPrompt
from tbactl.types import TrajectoryGroup

Prioritization = Literal["uniform", "reward-softmax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureSampler:
    """Most recent data with probability m, else any data: the batch selection of TBA, section 4.2 of arXiv 2503.18929.

    For each of the B prompts of a batch one coin falls.

    **Recency** (probability `on_policy_fraction`). A prompt is *fresh* from an insertion until it is next drawn,
    however many insertions, syncs and batches go by. Fresh prompts come first, among these the one with the newest
    policy version, among equals a uniform choice. When all fresh prompts are used up, the others follow by newest
    version in the same way. Of the prompt, K are drawn uniformly from its fresh trajectories; where these are fewer
    than K, its newest others fill up to K.

    **Whole buffer** (otherwise). A prompt is drawn uniformly without replacement from all, over batches too: each has
    its turn once before any has it again. Of the prompt, K are drawn with p proportional to exp(inverse_temperature *
    reward), successively and without replacement (Gumbel top-k, arXiv 1903.06059); or uniformly.

    A batch holds a prompt twice only when it wants more prompts than there are. Prompts with fewer than two distinct
    trajectories are never drawn. A prompt with n < K trajectories gives each once, and K - n more with replacement by
    the same probabilities, so that copies of the best one alone, whose residuals are all zero, cannot fill a group.

    This differs from the reference code, where recency ends at the next sync, used or not, and where fewer than K items
    are drawn with replacement altogether.

    Example:
        sampler = MixtureSampler(on_policy_fraction=0.95, prioritization="uniform")
        groups = sampler.select(buffer, num_prompts=16, num_per_prompt=8, policy_version=3, rng=rng)

    Attributes:
        on_policy_fraction: m, in [0, 1].
        prioritization: How the whole buffer's trajectories are weighed within a prompt.
        inverse_temperature: Of the reward softmax, >= 0; 0 is uniform, large takes the best.
        max_staleness: Trajectories more optimizer steps old than this are removed before a draw; None keeps all.
    """

    on_policy_fraction: float
    prioritization: Prioritization = "uniform"
    inverse_temperature: float = 1.0
    max_staleness: int | None = None

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
            if rng.random() < self.on_policy_fraction:
                prompt_id = buffer.recency.draw(rng, excluded=in_batch)
                chosen = self._choose_recent(buffer.prompts[prompt_id], num_per_prompt, rng)
            else:
                prompt_id = self._draw_any(buffer, in_batch, rng)
                chosen = self._choose_by_reward(buffer.prompts[prompt_id], num_per_prompt, rng)
            in_batch.add(prompt_id)
            groups.append(buffer.draw(prompt_id, chosen))
        return groups

    @staticmethod
    def _draw_any(buffer: ReplayBuffer, in_batch: set[int], rng: np.random.Generator) -> int:
        # A prompt that recency brought into this batch has had its turn; fewer than all are in the batch, so this ends.
        while (prompt_id := buffer.urn.draw(rng)) in in_batch:
            pass
        return prompt_id

    @staticmethod
    def _choose_recent(prompt: StoredPrompt, num_chosen: int, rng: np.random.Generator) -> list[int]:
        newest_first = range(len(prompt.trajectories) - 1, -1, -1)
        # sorted() is stable: fresh ones first, each part newest first.
        by_recency = sorted(newest_first, key=lambda index: not prompt.is_fresh(prompt.trajectories[index]))
        candidates = by_recency[: max(num_chosen, prompt.num_fresh)]
        chosen = choose_weighted(np.zeros(len(candidates)), num_chosen=num_chosen, rng=rng)
        return [candidates[index] for index in chosen]

    def _choose_by_reward(self, prompt: StoredPrompt, num_chosen: int, rng: np.random.Generator) -> list[int]:
        if self.prioritization == "uniform" or self.inverse_temperature == 0:
            log_weights = np.zeros(len(prompt.trajectories))
        else:
            rewards = np.array([stored.reward for stored in prompt.trajectories])
            # Relative to the best: overflows can only be towards -inf, that is, weight zero.
            with np.errstate(over="ignore"):
                log_weights = self.inverse_temperature * (rewards - rewards.max())
        return choose_weighted(log_weights, num_chosen=num_chosen, rng=rng)


def choose_weighted(log_weights: NDArray[np.float64], *, num_chosen: int, rng: np.random.Generator) -> list[int]:
    """Indexes drawn successively with p proportional to exp(log_weights), without replacement.

    With fewer items than `num_chosen`, each comes once and the rest is drawn with replacement.

    Args:
        log_weights: Shape (items,), natural logarithms, at most 0, at least one of them 0. -inf: only after all others.
        num_chosen: How many indexes.
        rng: Where the randomness comes from.

    Returns:
        `num_chosen` indexes into `log_weights`.
    """
    num_items = len(log_weights)
    if num_items < num_chosen:
        weights = np.exp(log_weights)
        extra = rng.choice(num_items, size=num_chosen - num_items, p=weights / weights.sum())
        return [*range(num_items), *extra.tolist()]
    # Gumbel top-k. Where a huge weight swallows the noise, the noise alone still decides between equals.
    noise = rng.gumbel(size=num_items)
    order = np.lexsort((noise, log_weights + noise))
    return order[::-1][:num_chosen].tolist()
