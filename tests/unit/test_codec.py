import dataclasses
import math
import pickle
import time

import numpy as np
import pytest

from tbactl.ipc.codec import LAYOUT_VERSION, CodecError, decode, encode
from tbactl.types import Completion, EvaluationResult, Trajectory, TrajectoryGroup
from tests.support.slowness import slowness


def completion(**changes: object) -> Completion:
    fields: dict = {
        "token_ids": (5, 6, 7),
        "logprobs": (-0.1, -0.25, -1e-9),
        "text": "yes \u2713",
        "finish_reason": "stop",
        "first_version": 3,
        "last_version": 4,
    }
    return Completion(**{**fields, **changes})


def group(*completions: Completion, reward: float = 0.5, **changes: object) -> TrajectoryGroup:
    trajectories = tuple(
        Trajectory(uid=(2 << 48) | number, completion=item, reward=reward)
        for number, item in enumerate(completions or (completion(),))
    )
    fields: dict = {
        "prompt_id": 17,
        "prompt_text": "1 + 1 =",
        "prompt_token_ids": (1, 2),
        "trajectories": trajectories,
        "searcher": 2,
        "sequence_number": 9,
        "stream_position": 33,
        "num_failed": 1,
    }
    return TrajectoryGroup(**{**fields, **changes})


def evaluation(**changes: object) -> EvaluationResult:
    fields: dict = {
        "task": "math",
        "policy_version": 40,
        "num_prompts": 500,
        "metrics": {"accuracy": 0.61},
        "intervals": {"accuracy": (0.57, 0.65)},
        "seconds": 12.5,
        "samples": ({"prompt": "1 + 1 =", "completion": "2"},),
    }
    return EvaluationResult(**{**fields, **changes})


@pytest.mark.parametrize("record", [group(), group(completion(token_ids=(), logprobs=())), evaluation()])
def test_round_trip_gives_an_equal_record(record: TrajectoryGroup | EvaluationResult):
    assert decode(encode(record)) == record


@pytest.mark.fault("I-28")
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (group(completion(logprobs=(-0.1,))), "logprobs is 1; there are 3 token ids"),
        (group(completion(logprobs=(-0.1, math.nan, -0.2))), "logprobs is inf or nan"),
        (group(completion(logprobs=(-0.1, -math.inf, -0.2))), "logprobs is inf or nan"),
        (group(completion(token_ids=(5, -1, 7))), "token_ids is a negative id"),
        (group(completion(first_version=5)), r"first_version, last_version is \(5, 4\)"),
        (group(completion(first_version=-1)), "must be 0 <= first <= last"),
        (group(reward=math.nan), "reward is nan; must be finite"),
        (group(reward=math.inf), "reward is inf"),
        (group(sequence_number=-1), "sequence_number is -1; must be >= 0"),
        (group(prompt_token_ids=(-3,)), "prompt_token_ids is a negative id"),
        (evaluation(policy_version=-1), "policy_version is -1"),
        (evaluation(seconds=math.nan), "seconds is nan"),
        (evaluation(metrics={"accuracy": math.inf}), r"metrics\['accuracy'\] is inf"),
        (evaluation(intervals={"accuracy": (0.1, math.nan)}), "intervals"),
    ],
)
def test_inconsistent_record_is_refused_by_the_sender(broken: TrajectoryGroup | EvaluationResult, message: str):
    with pytest.raises(CodecError, match=message):
        encode(broken)


@pytest.mark.fault("I-29")
def test_inconsistent_record_is_refused_by_the_receiver_too():
    good = encode(group(completion(logprobs=(-0.1, -0.25, -1.0))))
    # The float64 of -1.0 turned into NaN, as a foreign or broken sender might write it.
    assert good.count(b"\xbf\xf0\x00\x00\x00\x00\x00\x00") == 1
    with pytest.raises(CodecError, match="logprobs is inf or nan"):
        decode(good.replace(b"\xbf\xf0\x00\x00\x00\x00\x00\x00", b"\xff\xf8\x00\x00\x00\x00\x00\x00"))


def test_error_names_the_group_and_the_trajectory():
    with pytest.raises(CodecError, match=r"group 9 of searcher 2 \(prompt 17\), trajectory 562949953421312: reward"):
        encode(group(reward=math.nan))


@pytest.mark.parametrize(
    "broken",
    [
        group(completion(logprobs=tuple(np.float32([-0.1, -0.2, -0.3])))),
        group(completion(text="\udc80")),
        group(prompt_id=2**70),
    ],
)
def test_values_that_cannot_travel_are_refused(broken: TrajectoryGroup):
    with pytest.raises(CodecError, match="cannot be encoded"):
        encode(broken)


def test_other_layout_version_is_refused_with_both_numbers():
    data = bytearray(encode(group()))
    data[4] = LAYOUT_VERSION + 1
    with pytest.raises(
        CodecError, match=f"layout version {LAYOUT_VERSION + 1}; this process knows version {LAYOUT_VERSION}"
    ):
        decode(bytes(data))


def test_unknown_kind_is_refused():
    data = bytearray(encode(group()))
    data[5] = 77
    with pytest.raises(CodecError, match="unknown record kind 77"):
        decode(bytes(data))


def test_kind_of_the_other_type_is_refused():
    data = bytearray(encode(group()))
    data[5] = encode(evaluation())[5]
    with pytest.raises(CodecError, match="damaged record"):
        decode(bytes(data))


@pytest.mark.parametrize("record", [group(), evaluation()])
def test_every_truncation_and_any_surplus_is_refused(record: TrajectoryGroup | EvaluationResult):
    data = encode(record)
    for length in range(len(data)):
        with pytest.raises(CodecError):
            decode(data[:length])
    with pytest.raises(CodecError):
        decode(data + b"\0")


def test_wrong_field_type_is_refused():
    data = encode(group())
    assert data.count(b"\xa4stop") == 1
    with pytest.raises(CodecError, match="finish_reason"):
        decode(data.replace(b"\xa4stop", b"\xa4spam"))


@pytest.mark.fault("I-67", "R-07")
def test_pickle_is_never_read():
    with pytest.raises(CodecError, match="no record of tbactl"):
        decode(pickle.dumps(group()))


def test_fields_on_the_wire_are_those_of_the_layout_version():
    """When this fails, a type of types.py changed: raise codec.LAYOUT_VERSION, then pin the new fields here."""
    pinned = {
        TrajectoryGroup: "prompt_id prompt_text prompt_token_ids trajectories searcher sequence_number stream_position"
        " num_failed",
        Trajectory: "uid completion reward",
        Completion: "token_ids logprobs text finish_reason first_version last_version",
        EvaluationResult: "task policy_version num_prompts metrics intervals seconds samples template num_shots",
    }
    assert LAYOUT_VERSION == 2
    for kind, names in pinned.items():
        assert [field.name for field in dataclasses.fields(kind)] == names.split()


def test_group_of_8_times_100_tokens_takes_well_under_half_a_millisecond():
    item = completion(token_ids=tuple(range(1000, 1100)), logprobs=(-0.123456789,) * 100, text="y" * 300)
    record = group(*[item] * 8)

    def best_of(function, argument, attempts: int = 50) -> float:
        times = []
        for _ in range(attempts):
            start_s = time.perf_counter()
            function(argument)
            times.append(time.perf_counter() - start_s)
        return min(times)

    data = encode(record)
    limit_s = 0.0005 * slowness()
    assert best_of(encode, record) < limit_s
    assert best_of(decode, data) < limit_s
