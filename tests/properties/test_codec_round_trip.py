import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tbactl.ipc.codec import CodecError, decode, encode
from tbactl.types import Completion, EvaluationResult, Trajectory, TrajectoryGroup

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**53)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=20).map(tuple)


@st.composite
def completions(draw: st.DrawFn) -> Completion:
    ids = draw(token_ids)
    first, last = sorted((draw(counts), draw(counts)))
    return Completion(
        token_ids=ids,
        logprobs=tuple(draw(st.lists(finite, min_size=len(ids), max_size=len(ids)))),
        text=draw(texts),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
        first_version=first,
        last_version=last,
    )


groups = st.builds(
    TrajectoryGroup,
    prompt_id=st.integers(-(2**63), 2**63 - 1),
    prompt_text=texts,
    prompt_token_ids=token_ids,
    trajectories=st.lists(
        st.builds(Trajectory, uid=st.integers(0, 2**64 - 1), completion=completions(), reward=finite), max_size=4
    ).map(tuple),
    searcher=counts,
    sequence_number=counts,
    stream_position=counts,
    num_failed=counts,
)
evaluations = st.builds(
    EvaluationResult,
    task=texts,
    policy_version=counts,
    num_prompts=counts,
    metrics=st.dictionaries(texts, finite, max_size=3),
    intervals=st.dictionaries(texts, st.tuples(finite, finite), max_size=3),
    seconds=st.floats(0, 1e9),
    samples=st.lists(st.dictionaries(texts, texts, max_size=3), max_size=2).map(tuple),
)


@pytest.mark.fault("I-88")
@given(st.one_of(groups, evaluations))
def test_any_record_round_trips(record: TrajectoryGroup | EvaluationResult):
    assert decode(encode(record)) == record


@given(st.one_of(groups, evaluations), st.data())
@settings(max_examples=300)
def test_any_changed_byte_gives_a_record_or_a_codec_error(
    record: TrajectoryGroup | EvaluationResult, data: st.DataObject
):
    encoded = bytearray(encode(record))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    try:
        decoded = decode(bytes(encoded))
    except CodecError:
        return
    assert isinstance(decoded, TrajectoryGroup | EvaluationResult)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes):
    try:
        decode(data)
    except CodecError:
        return
    raise AssertionError("random bytes were taken for a record")
