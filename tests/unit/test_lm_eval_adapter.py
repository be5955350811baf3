"""The lm-eval adapter over a scripted engine: what the harness asks reaches the engine, and comes back right."""

from __future__ import annotations

import pytest
from lm_eval.api.instance import Instance

from tbactl.evaluation.lm_eval_adapter import EngineLM
from tbactl.protocols import FinishedRequest
from tbactl.types import Completion


class ScriptedEngine:
    """Token ids are character codes; answers "ab.c" to everything; each scored token has log-prob -1."""

    policy_version = 0

    def __init__(self):
        self.requests = []
        self._waiting = []

    def encode(self, text):
        return tuple(map(ord, text))

    def submit(self, request):
        self.requests.append(request)
        self._waiting.append(request)

    def step(self):
        finished = []
        for request in self._waiting:
            text = "ab.c"[: request.sampling.max_new_tokens]
            completion = Completion(
                token_ids=tuple(map(ord, text)), logprobs=(-1.0,) * len(text), text=text, finish_reason="length"
            )
            finished.append(FinishedRequest(request_id=request.request_id, completion=completion))
        self._waiting = []
        return finished

    @property
    def num_unfinished(self):
        return len(self._waiting)

    def sequence_logprobs(self, sequences):
        return [(-1.0,) * (len(ids) - length) for ids, length in sequences]


def instance(*arguments):
    return Instance(request_type="generate_until", doc={}, arguments=arguments, idx=0)


@pytest.fixture
def engine():
    return ScriptedEngine()


@pytest.fixture
def model(engine):
    return EngineLM(engine, max_new_tokens=7)


def test_generate_until_cuts_at_the_first_stop_string_and_keeps_the_order(model):
    requests = [instance("q", {"until": ["."]}), instance("p", {"until": []}), instance("r", {"until": "b"})]
    assert model.generate_until(requests) == ["ab", "ab.c", "a"]


def test_generate_until_is_greedy_unless_sampling_is_asked_for(model, engine):
    model.generate_until([instance("q", {}), instance("q", {"do_sample": True, "temperature": 0.3, "max_gen_toks": 2})])
    samplings = [request.sampling for request in engine.requests]
    assert [(s.temperature, s.max_new_tokens) for s in samplings] == [(0.0, 7), (0.3, 2)]


def test_loglikelihood_sums_the_continuation_and_says_whether_it_is_greedy(model):
    assert model.loglikelihood([instance("q", "ab"), instance("q", "ax")]) == [(-2.0, True), (-2.0, False)]


def test_loglikelihood_rolling_scores_all_but_the_first_token(model):
    assert model.loglikelihood_rolling([instance("abcd")]) == [-3.0]
