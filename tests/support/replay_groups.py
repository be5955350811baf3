"""Short ways to write trajectory groups for replay tests."""

from __future__ import annotations

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


def tokens_of(group: TrajectoryGroup) -> list[int]:
    """Which completions a drawn group holds."""
    return [trajectory.completion.token_ids[0] for trajectory in group.trajectories]


def held_tokens(buffer: ReplayBuffer, prompt_id: int) -> list[int]:
    """Which completions a prompt holds, oldest first."""
    return [stored.to_trajectory().completion.token_ids[0] for stored in buffer.prompts[prompt_id].trajectories]
