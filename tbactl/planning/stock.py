"""The replay buffer as the simulation needs it: which versions it holds, and which of them are drawn.

Prompts come in the order of the real buffer (`replay.prompt_orders`); of a trajectory only its version is known. So
what depends on rewards or tokens is left out: every weighted draw is uniform here, and eviction takes the oldest.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tbactl.config.sections import ReplaySection
from tbactl.replay.prompt_orders import RecencyOrder, Urn

# Samplers that are the mixture with a fixed m.
FIXED_FRACTIONS = {"recency": 1.0, "uniform": 0.0, "reward-softmax": 0.0, "residual": 0.0}


class MadeGroup(NamedTuple):
    """A group on its way from a searcher to the buffer."""

    prompt_id: int
    version: int
    """Of the policy when it was begun."""


class Drawn(NamedTuple):
    """A batch."""

    versions: np.ndarray
    """Of its trajectories, int64 [B * K]."""
    num_new: int
    """Of these, inserted after their prompt was last drawn."""


@dataclass(slots=True, eq=False)
class _Stored:
    """A group in the buffer."""

    prompt_id: int
    version: int
    number: int
    is_held: bool = True


def _version(stored: _Stored) -> int:
    return stored.version


@dataclass(slots=True)
class _Prompt:
    groups: list[_Stored] = field(default_factory=list)  # by version
    newest_number: int = -1
    last_draw: int = -1


class Stock:
    """Groups by prompt, and draws by the mixture sampler.

    Args:
        replay: the buffer's settings.
        group_size: S, trajectories in a group.
        rng: of all draws.
    """

    def __init__(self, replay: ReplaySection, *, group_size: int, rng: np.random.Generator) -> None:
        self._replay = replay
        self._group_size = group_size
        self._rng = rng
        self._prompts: dict[int, _Prompt] = {}
        self._by_age: deque[_Stored] = deque()
        self._num_held = 0
        self._num_inserted = 0
        self._urn = Urn()
        self._recency = RecencyOrder()

    def __len__(self) -> int:
        """Trajectories held."""
        return self._num_held * self._group_size

    @property
    def num_prompts(self) -> int:
        """That can be drawn."""
        return len(self._urn)

    def insert(self, group: MadeGroup) -> None:
        """Take a group in; the oldest leave when there are too many."""
        prompt = self._prompts.setdefault(group.prompt_id, _Prompt())
        stored = _Stored(group.prompt_id, group.version, self._num_inserted)
        self._num_inserted += 1
        bisect.insort(prompt.groups, stored, key=_version)
        prompt.newest_number = stored.number
        self._by_age.append(stored)
        self._num_held += 1
        self._file(group.prompt_id)
        # A group that is held in part counts as whole.
        while (len(prompt.groups) - 1) * self._group_size >= self._replay.capacity_per_prompt:
            self._remove(prompt.groups[0])
        while len(self) > self._replay.capacity and self._num_held > 1:
            self._remove(self._oldest())

    def expire(self, *, oldest_version: int) -> None:
        """Remove what is of versions before this one."""
        while self._num_held and self._oldest().version < oldest_version:
            self._remove(self._oldest())

    def draw(self, *, num_prompts: int, num_per_prompt: int, on_policy_fraction: float) -> Drawn:
        """B prompts, K trajectories of each; at least one prompt must be there."""
        fraction = FIXED_FRACTIONS.get(self._replay.sampler, on_policy_fraction)
        in_batch: set[int] = set()
        versions, num_new = [], 0
        for _ in range(num_prompts):
            if len(in_batch) == self.num_prompts:
                in_batch.clear()
            is_recent = self._rng.random() < fraction
            prompt_id = self._recency.draw(self._rng, excluded=in_batch) if is_recent else self._draw_any(in_batch)
            in_batch.add(prompt_id)
            drawn = self._draw_of(self._prompts[prompt_id], num_per_prompt, is_recent=is_recent)
            versions.append(drawn.versions)
            num_new += drawn.num_new
            self._prompts[prompt_id].last_draw = self._num_inserted - 1
            self._file(prompt_id)
        return Drawn(np.concatenate(versions), num_new)

    def _draw_any(self, in_batch: set[int]) -> int:
        while (prompt_id := self._urn.draw(self._rng)) in in_batch:
            pass
        return prompt_id

    def _draw_of(self, prompt: _Prompt, num_chosen: int, *, is_recent: bool) -> Drawn:
        """K of a prompt: fresh ones and then the newest others, or any; more than there are come twice."""
        group_numbers = np.repeat(np.arange(len(prompt.groups)), self._group_size)
        versions = np.array([group.version for group in prompt.groups])
        is_fresh = np.array([group.number > prompt.last_draw for group in prompt.groups])
        order = self._rng.permutation(len(group_numbers))
        if is_recent:
            # Fresh before others, these by newest version; within equals in the shuffled order.
            chosen = group_numbers[order]
            rank = np.where(is_fresh, versions.max() + 1, versions)[chosen]
            chosen = chosen[np.argsort(-rank, kind="stable")]
        else:
            chosen = group_numbers[order]
        chosen = np.resize(chosen, num_chosen) if len(chosen) < num_chosen else chosen[:num_chosen]
        return Drawn(versions[chosen], int(is_fresh[chosen][: len(group_numbers)].sum()))

    def _oldest(self) -> _Stored:
        while not self._by_age[0].is_held:
            self._by_age.popleft()
        return self._by_age[0]

    def _remove(self, stored: _Stored) -> None:
        stored.is_held = False
        self._num_held -= 1
        self._prompts[stored.prompt_id].groups.remove(stored)
        self._file(stored.prompt_id)

    def _file(self, prompt_id: int) -> None:
        prompt = self._prompts[prompt_id]
        if not prompt.groups:
            del self._prompts[prompt_id]
            self._recency.discard(prompt_id)
            self._urn.remove(prompt_id)
            return
        self._recency.place(prompt_id, (prompt.newest_number > prompt.last_draw, prompt.groups[-1].version))
        if prompt_id not in self._urn:
            self._urn.add(prompt_id)
