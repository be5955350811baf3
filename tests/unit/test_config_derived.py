import pytest

from tbactl.config import derived
from tbactl.config.sections import RunConfig
from tbactl.ipc.codec import encode
from tbactl.types import Completion, Trajectory, TrajectoryGroup


def config(**sections):
    return RunConfig.model_validate({"name": "t", "task": {"kind": "fake"}, "policy": {"path": "x"}, **sections})


def full_group(*, num_completions, prompt_tokens, new_tokens):
    """The largest group that a searcher of these settings can write."""
    completion = Completion(
        token_ids=(2**31,) * new_tokens,
        logprobs=(-0.123456789012345,) * new_tokens,
        text="nine char" * new_tokens,
        finish_reason="length",
        first_version=10**6,
        last_version=10**6,
    )
    trajectories = tuple(Trajectory(uid=2**50 + i, completion=completion, reward=0.1) for i in range(num_completions))
    return TrajectoryGroup(
        prompt_id=2**40,
        prompt_text="x" * 4 * prompt_tokens,
        prompt_token_ids=(2**31,) * prompt_tokens,
        trajectories=trajectories,
        searcher=1,
        sequence_number=2**40,
    )


@pytest.mark.parametrize(
    ("num_completions", "prompt_tokens", "new_tokens"), [(2, 10, 1), (8, 200, 160), (24, 512, 512)]
)
def test_smallest_ring_takes_a_group_with_nine_characters_a_token(num_completions, prompt_tokens, new_tokens):
    settings = config(
        searchers={
            "num_completions": num_completions,
            "max_prompt_tokens": prompt_tokens,
            "max_new_tokens": new_tokens,
        }
    )
    group = full_group(num_completions=num_completions, prompt_tokens=prompt_tokens, new_tokens=new_tokens)
    assert len(encode(group)) < derived.smallest_ring_bytes(settings)


def test_batch_and_group_sizes_follow_their_formulas():
    settings = config(
        trainer={"prompts_per_step": 7, "completions_per_prompt": 20},
        searchers={"max_prompt_tokens": 512, "max_new_tokens": 128},
    )
    assert derived.batch_trajectories(settings) == 140
    assert derived.sequence_tokens(settings) == 640
    assert derived.group_tokens(settings) == 12_800
    assert derived.shared_group_tokens(settings) == 3_072


@pytest.mark.parametrize(("mode", "expected"), [("async", 10), ("sync", 5)])
def test_open_groups_are_bounded(mode, expected):
    assert derived.most_open_groups(config(mode=mode, searchers={"max_concurrent_groups": 5})) == expected


def test_shared_memory_holds_all_rings_and_three_versions_of_the_weights():
    settings = config(searchers={"num_searchers": 3, "ring_capacity_bytes": 10_000})
    assert derived.shared_memory_bytes(settings, policy_bytes=1000) == 33_000


def test_shared_memory_holds_whole_weights_once_for_each_searcher_where_adapters_are_published():
    searchers = {"num_searchers": 2, "ring_capacity_bytes": 10_000}
    policy, sync = {"path": "p", "lora_rank": 4}, {"weights": "adapter"}
    assert derived.shared_memory_bytes(config(searchers=searchers, policy=policy, sync=sync), policy_bytes=1) == 20_002
    assert derived.shared_memory_bytes(config(searchers=searchers, policy=policy), policy_bytes=1) == 20_003


@pytest.mark.parametrize(
    ("changes", "freshest", "worst"),
    [
        ({"sync": {"period": 4}}, 3, 99),
        ({"sync": {"period": 1}}, 0, 99),
        ({"replay": {"max_staleness": 6}, "sync": {"period": 4}}, 3, 6),
        ({"replay": {"max_staleness": 6}, "trainer": {"max_steps": 3}}, 1, 2),
        ({"replay": {"intake": "at-sync"}, "sync": {"period": 4}}, 7, 99),
        ({"replay": {"intake": "at-sync"}, "sync": {"period": 4}, "trainer": {"max_steps": 6}}, 5, 5),
        ({"mode": "sync", "sync": {"period": 1}, "replay": {"on_policy_fraction": 1.0}}, 0, 0),
    ],
)
def test_staleness_bounds_follow_their_formulas(changes, freshest, worst):
    assert derived.freshest_staleness(config(**changes)) == freshest
    assert derived.worst_case_staleness(config(**changes)) == worst
