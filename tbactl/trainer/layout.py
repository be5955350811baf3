"""How trajectory groups become rows of one forward pass: which tokens stand where. Plain lists, no tensors.

Two layouts, which give the same log-probs:

*Shared prompt.* The prompt of a group is passed through the model once. Its completions follow on the prompt's cached
keys and values, several of them end to end in one row, where a mask keeps each to itself:

    prompts   [ p p p p . ]      rows   [ a a a a a a ]     a, b, c: completions of the first prompt
              [ q q q q q ]             [ b b b c c . ]     d: of the second; its row sees only the second prompt
                                        [ d d d d . . ]

*Padded.* One row for each trajectory, prompt and completion, filled up at its end. For models and settings that
cannot do the other: it reads a prompt K times, and pads every completion to the longest.

The last token of a completion predicts nothing, so the shared layout leaves it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tbactl.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Segment:
    """A completion's place in the shared layout."""

    trajectory: int
    """Number within the micro-batch, groups in order."""
    row: int
    start: int
    length: int
    """Tokens that are passed through the model: one less than the completion has."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The shared layout of some groups."""

    segments: tuple[Segment, ...]
    row_groups: tuple[int, ...]
    """For each row, the group whose prompt it follows."""
    row_tokens: int
    """Length of every row."""
    prompt_tokens: int
    """Length of every prompt row."""

    @property
    def num_padded_tokens(self) -> int:
        """Positions computed, padding included."""
        num_prompts = len(set(self.row_groups))
        return num_prompts * self.prompt_tokens + len(self.row_groups) * self.row_tokens


def pack(groups: Sequence[TrajectoryGroup]) -> Packing:
    """Place completions in rows as long as the longest of them: each group by itself, first fit, longest first.

    Longer rows would hold a little less filler, but their attention costs what that saves (measured).
    """
    # At least one, so that every pass calls the model in the same way: under ZeRO-3 all ranks must.
    row_tokens = max([1, *(_segment_tokens(group, j) for group in groups for j in range(len(group.trajectories)))])
    segments: list[Segment] = []
    row_groups: list[int] = []
    num_trajectories = 0
    for number, group in enumerate(groups):
        first_row = len(row_groups)
        used: list[int] = []
        lengths = [_segment_tokens(group, j) for j in range(len(group.trajectories))]
        for j in sorted(range(len(lengths)), key=lambda j: -lengths[j]):
            row = next((row for row, tokens in enumerate(used) if tokens + lengths[j] <= row_tokens), len(used))
            if row == len(used):
                used.append(0)
            segments.append(Segment(num_trajectories + j, first_row + row, used[row], lengths[j]))
            used[row] += lengths[j]
        row_groups += [number] * len(used)
        num_trajectories += len(lengths)
    prompt_tokens = max((len(group.prompt_token_ids) for group in groups), default=0)
    return Packing(tuple(segments), tuple(row_groups), row_tokens, prompt_tokens)


def _segment_tokens(group: TrajectoryGroup, j: int) -> int:
    return max(0, len(group.trajectories[j].completion.token_ids) - 1)


def num_padded_tokens(groups: Sequence[TrajectoryGroup], *, shares_prompt: bool) -> int:
    """Positions that a forward pass over these groups computes, padding included."""
    if shares_prompt:
        return pack(groups).num_padded_tokens
    num_rows = sum(len(group.trajectories) for group in groups)
    return num_rows * max((_longest_sequence(group) for group in groups), default=0)


def _longest_sequence(group: TrajectoryGroup) -> int:
    return len(group.prompt_token_ids) + longest_completion(group)


def longest_completion(group: TrajectoryGroup) -> int:
    """Tokens of the longest completion."""
    return max((len(trajectory.completion.token_ids) for trajectory in group.trajectories), default=0)


def plan_micro_batches(
    groups: Sequence[TrajectoryGroup], *, num_ranks: int, budget_tokens: int, shares_prompt: bool
) -> list[list[list[int]]]:
    """Deal groups to ranks and divide each rank's share into forward passes.

    Groups are never split: log Z is estimated over a whole one. The largest are dealt first, always to the rank with
    the fewest tokens. Within a rank groups of like length come together, so that little is padded. Every rank gets the
    same number of micro-batches, for their collective operations must match; some may be empty. Deterministic.

    Args:
        groups: of one optimizer step, at least one for each rank.
        num_ranks: data-parallel processes.
        budget_tokens: padded tokens in one pass; a pass holds at least one group.
        shares_prompt: the layout that is going to be used.

    Returns:
        For each rank, its micro-batches: lists of indexes into `groups`.
    """
    assert len(groups) >= num_ranks, f"{len(groups)} groups cannot be dealt to {num_ranks} ranks"
    dealt = _deal(groups, num_ranks=num_ranks, shares_prompt=shares_prompt)
    plans = [_divide(groups, share, budget_tokens=budget_tokens, shares_prompt=shares_prompt) for share in dealt]
    most = max(len(plan) for plan in plans)
    return [plan + [[]] * (most - len(plan)) for plan in plans]


def _deal(groups: Sequence[TrajectoryGroup], *, num_ranks: int, shares_prompt: bool) -> list[list[int]]:
    costs = [num_padded_tokens([group], shares_prompt=shares_prompt) for group in groups]
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for index in sorted(range(len(groups)), key=lambda index: -costs[index]):
        # A rank without any group comes first, whatever the sizes: each must have one.
        rank = min(range(num_ranks), key=lambda rank: (bool(shares[rank]), loads[rank]))
        shares[rank].append(index)
        loads[rank] += costs[index]
    return shares


def _divide(
    groups: Sequence[TrajectoryGroup], share: list[int], *, budget_tokens: int, shares_prompt: bool
) -> list[list[int]]:
    passes: list[list[int]] = []
    for index in sorted(share, key=lambda index: (longest_completion(groups[index]), index)):
        candidate = [*passes[-1], index] if passes else [index]
        tokens = num_padded_tokens([groups[i] for i in candidate], shares_prompt=shares_prompt)
        if passes and tokens <= budget_tokens:
            passes[-1] = candidate
        else:
            passes.append([index])
    return passes
