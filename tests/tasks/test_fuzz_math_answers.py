"""Whatever a completion says, reading its answer ends soon and without an exception, and gives the same again."""

from __future__ import annotations

import time

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tbactl.types import Completion
from tbactl_math.answer import compare, find_answer, read_gold
from tbactl_math.reward import score_completion
from tbactl_math.verifier import Verifier
from tests.support.corpus import as_text, corpus_first

# Thousands of characters take milliseconds; only an exponential search takes this long.
LIMIT_S = 10.0
TOKENS = r"""
#### \boxed{ } { \frac \sqrt \text{ \begin{pmatrix} \\ & ^ _ - + . , 1 23 0 9999 x = $ \( \) % answer answer: Question:
<<1+1=2>> <|endoftext|> \overline \infty : / ** ! or and
"""
PIECES = st.sampled_from([*TOKENS.split(), " ", "\n", "the answer is "])
WRITTEN = st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=60).map("".join)
REPEATED = st.tuples(st.lists(PIECES, min_size=1, max_size=4).map("".join), st.integers(1, 2000)).map(
    lambda item: item[0] * item[1]
)


@pytest.fixture(scope="module")
def verifier():
    verifier = Verifier(time_limit_s=1.0)
    yield verifier
    verifier.close()


@corpus_first("answers", as_text)
@given(text=st.one_of(WRITTEN, REPEATED))
@settings(max_examples=150)
def test_any_completion_is_read_in_bounded_time_and_alike_twice(text: str):
    started_s = time.process_time()
    answer = find_answer(text)
    gold = read_gold(text)
    verdict = compare(answer, gold)
    assert time.process_time() - started_s < LIMIT_S
    assert (find_answer(text), read_gold(text), compare(answer, gold)) == (answer, gold, verdict)


@corpus_first("answers", as_text)
@given(text=WRITTEN)
@settings(max_examples=25)
def test_any_completion_has_a_finite_reward_and_never_an_exception(verifier: Verifier, text: str):
    completion = Completion(token_ids=(), logprobs=(), text=text, finish_reason="stop")
    for gold in ("3", r"\frac{1}{2}", text):
        reward = score_completion(completion, gold=gold, verifier=verifier)
        assert reward.value in (0.0, 1.0)
        assert reward.value == 0.0 or reward.error is None
