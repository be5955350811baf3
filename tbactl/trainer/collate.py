"""Trajectory groups as tensors: one micro-batch, laid out for the model's forward pass and for the objective.

Before this file on the way of a trajectory: the replay buffer's sampler, and `layout.py`. After it: `scoring.py`.
Letters in the shapes: `trajectories` N, `tokens` T (of the longest completion), `groups` prompts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tbactl.trainer.layout import Packing, pack
from tbactl.types import TrajectoryGroup

# Stands in padded places; any valid id would do, for no real position attends to it and nothing is read from it.
FILLER = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class PaddedRows:
    """One row for each trajectory: prompt, completion, filler."""

    input_ids: Int[Tensor, "trajectories length"]

    @property
    def num_tokens(self) -> int:
        """Positions computed."""
        return self.input_ids.numel()


@dataclass(frozen=True, eq=False, kw_only=True)
class SharedPromptRows:
    """A row for each prompt; completions packed in further rows that follow on a prompt's keys and values."""

    prompt_ids: Int[Tensor, "groups prompt_length"]
    row_group: Int[Tensor, " rows"]
    input_ids: Int[Tensor, "rows row_length"]
    position_ids: Int[Tensor, "rows row_length"]
    attention_mask: Bool[Tensor, "rows 1 row_length prompt_and_row_length"]
    """What each completion token sees: its own prompt without filler, and its own completion up to itself."""

    @property
    def num_tokens(self) -> int:
        """Positions computed."""
        return self.prompt_ids.numel() + self.input_ids.numel()


@dataclass(frozen=True, eq=False, kw_only=True)
class MicroBatch:
    """What one forward pass works on.

    Attributes:
        rows: the model's input.
        source: flat position in the model's output (that of the prompts, then that of the rows) whose hidden state
            predicts each completion token.
        target_ids: completion tokens, EOS where it was generated.
        completion_mask: True on completion tokens; made from lengths alone, so that pad = EOS does no harm.
        behavior_logprobs: as the searcher's engine reported them.
        rewards: one for each trajectory.
        group_index: the group of each trajectory; rows of a group are neighbours.
        num_groups: prompts.
        num_prompt_tokens: length of each trajectory's prompt.
        uids: of the trajectories; one drawn twice into a group comes twice.
    """

    rows: PaddedRows | SharedPromptRows
    source: Int[Tensor, "trajectories tokens"]
    target_ids: Int[Tensor, "trajectories tokens"]
    completion_mask: Bool[Tensor, "trajectories tokens"]
    behavior_logprobs: Float[Tensor, "trajectories tokens"]
    rewards: Float[Tensor, " trajectories"]
    group_index: Int[Tensor, " trajectories"]
    num_groups: int
    num_prompt_tokens: Int[Tensor, " trajectories"]
    uids: tuple[int, ...]

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        moved = {field.name: _moved(getattr(self, field.name), device) for field in dataclasses.fields(self)}
        return dataclasses.replace(self, **moved)


def _moved(value: object, device: torch.device) -> object:
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, PaddedRows | SharedPromptRows):
        fields = dataclasses.fields(value)
        return dataclasses.replace(value, **{field.name: getattr(value, field.name).to(device) for field in fields})
    return value


def collate(groups: Sequence[TrajectoryGroup], *, shares_prompt: bool) -> MicroBatch:
    """Lay out some groups, at least one, each with at least one trajectory, as one micro-batch on the CPU."""
    assert groups and all(group.trajectories for group in groups)
    assert all(group.prompt_token_ids for group in groups), "the first token of a completion follows on a prompt"
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    lengths = torch.tensor([len(trajectory.completion.token_ids) for trajectory in trajectories])
    num_tokens = int(lengths.max())
    mask = torch.arange(num_tokens) < lengths[:, None]
    target_ids = torch.full(mask.shape, FILLER)
    target_ids[mask] = torch.tensor([i for t in trajectories for i in t.completion.token_ids], dtype=torch.long)
    behavior = torch.zeros(mask.shape)
    behavior[mask] = torch.tensor([x for t in trajectories for x in t.completion.logprobs], dtype=torch.float32)
    owners = [number for number, group in enumerate(groups) for _ in group.trajectories]
    group_index = torch.tensor(owners)
    lay_out = _shared_rows if shares_prompt else _padded_rows
    rows, source = lay_out(groups, mask=mask, target_ids=target_ids, group_index=group_index)
    return MicroBatch(
        rows=rows,
        source=source,
        target_ids=target_ids,
        completion_mask=mask,
        behavior_logprobs=behavior,
        rewards=torch.tensor([trajectory.reward for trajectory in trajectories], dtype=torch.float32),
        group_index=group_index,
        num_groups=len(groups),
        num_prompt_tokens=torch.tensor([len(groups[number].prompt_token_ids) for number in owners]),
        uids=tuple(trajectory.uid for trajectory in trajectories),
    )


def _prompt_rows(groups: Sequence[TrajectoryGroup]) -> tuple[Tensor, Tensor]:
    """Prompt ids, filled up at the end, and their lengths."""
    lengths = torch.tensor([len(group.prompt_token_ids) for group in groups])
    ids = torch.full((len(groups), int(lengths.max())), FILLER)
    for row, group in zip(ids, groups, strict=True):
        row[: len(group.prompt_token_ids)] = torch.tensor(group.prompt_token_ids)
    return ids, lengths


def _padded_rows(
    groups: Sequence[TrajectoryGroup], *, mask: Tensor, target_ids: Tensor, group_index: Tensor
) -> tuple[PaddedRows, Tensor]:
    prompts, prompt_lengths = _prompt_rows(groups)
    starts = prompt_lengths[group_index]
    length = int((starts + mask.sum(dim=1)).max())
    input_ids = torch.full((len(group_index), length), FILLER)
    input_ids[:, : prompts.shape[1]] = prompts[group_index][:, :length]
    positions = starts[:, None] + torch.arange(mask.shape[1])
    trajectory, token = mask.nonzero(as_tuple=True)
    input_ids[trajectory, positions[trajectory, token]] = target_ids[trajectory, token]
    # The hidden state one place earlier predicts a token.
    source = torch.arange(len(group_index))[:, None] * length + positions - 1
    return PaddedRows(input_ids=input_ids), source.masked_fill(~mask, 0)


def _shared_rows(
    groups: Sequence[TrajectoryGroup], *, mask: Tensor, target_ids: Tensor, group_index: Tensor
) -> tuple[SharedPromptRows, Tensor]:
    packing = pack(groups)
    prompts, prompt_lengths = _prompt_rows(groups)
    shape = (len(packing.row_groups), packing.row_tokens)
    input_ids, position_ids = torch.full(shape, FILLER), torch.zeros(shape, dtype=torch.long)
    owner = torch.full(shape, -1)
    # The first token of a completion is predicted by the last one of its prompt.
    source = torch.zeros(mask.shape, dtype=torch.long)
    source[:, :1] = (group_index * prompts.shape[1] + prompt_lengths[group_index] - 1)[:, None]
    for segment in packing.segments:
        n, length = segment.trajectory, segment.length
        place = (segment.row, slice(segment.start, segment.start + length))
        input_ids[place] = target_ids[n, :length]
        position_ids[place] = prompt_lengths[group_index[n]] + torch.arange(length)
        owner[place] = n
        first = prompts.numel() + segment.row * packing.row_tokens + segment.start
        source[n, 1 : 1 + length] = first + torch.arange(length)
    rows = SharedPromptRows(
        prompt_ids=prompts,
        row_group=torch.tensor(packing.row_groups, dtype=torch.long),
        input_ids=input_ids,
        position_ids=position_ids,
        attention_mask=_visible(packing, owner=owner, prompt_lengths=prompt_lengths),
    )
    return rows, source.masked_fill(~mask, 0)


def _visible(packing: Packing, *, owner: Tensor, prompt_lengths: Tensor) -> Bool[Tensor, "rows 1 row both"]:
    num_rows, length = owner.shape
    row_groups = torch.tensor(packing.row_groups, dtype=torch.long)
    in_prompt = torch.arange(packing.prompt_tokens) < prompt_lengths[row_groups][:, None]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    in_row = (owner[:, :, None] == owner[:, None, :]) & causal
    prompt_part = in_prompt[:, None, :].expand(num_rows, length, packing.prompt_tokens)
    return torch.cat([prompt_part, in_row], dim=-1)[:, None]
