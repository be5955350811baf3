"""Short ways to write trajectory groups for replay tests."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from tbactl.replay.buffer import ReplayBuffer
from tbactl.types import Completion, Trajectory, TrajectoryGroup

_uids = itertools.count()


def make_group(
    prompt_id: int, tokens: Sequence[int], *, version: int = 0, rewards: Sequence[float] | None = None
) -> TrajectoryGroup:
    """A group of one-token completions: `tokens` says which are distinct; log-probs tell copies apart."""
    uids = [next(_uids) for _ in tokens]
    return TrajectoryGroup(
        prompt_id=prompt_id,
        prompt_text=f"prompt {prompt_id}",
        prompt_token_ids=(prompt_id,),
        trajectories=tuple(
            Trajectory(
                uid=uid,
                completion=Completion(
                    token_ids=(token,),
                    logprobs=(-float(uid),),
                    text=f"completion {token}",
                    finish_reason="stop",
                    first_version=version,
                    last_version=version,
                ),
                reward=reward,
            )
            for uid, token, reward in zip(uids, tokens, rewards or [0.0] * len(tokens), strict=True)
        ),
        searcher=0,
        sequence_number=uids[0] if uids else 0,
    )


def make_text_group(
    prompt_id: int, members: Sequence[tuple[tuple[int, ...], str, float]], *, version: int = 0
) -> TrajectoryGroup:
    """A group of completions given as (token ids, text, reward)."""
    group = make_group(
        prompt_id, range(len(members)), version=version, rewards=[reward for _, _, reward in members] or None
    )
    trajectories = tuple(
        dataclasses.replace(
            trajectory,
            completion=dataclasses.replace(
                trajectory.completion, token_ids=token_ids, logprobs=(-1.0,) * len(token_ids), text=text
            ),
        )
        for trajectory, (token_ids, text, _) in zip(group.trajectories, members, strict=True)
    )
    return dataclasses.replace(group, trajectories=trajectories)


def tokens_of(group: TrajectoryGroup) -> list[int]:
    """Which completions a drawn group holds."""
    return [trajectory.completion.token_ids[0] for trajectory in group.trajectories]


def held_tokens(buffer: ReplayBuffer, prompt_id: int) -> list[int]:
    """Which completions a prompt holds, oldest first."""
    return [stored.token_ids[0] for stored in buffer.prompts[prompt_id].trajectories]


def slots_at(buffer: ReplayBuffer, prompt_id: int, ranks: Sequence[int]) -> list[int]:
    """Where trajectories of a prompt are stored, by rank: 0 is the oldest."""
    slots = list(buffer.prompts[prompt_id].ages)
    return [slots[rank] for rank in ranks]
