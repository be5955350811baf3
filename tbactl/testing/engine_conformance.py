"""What every engine must do, checked against a plain transformers forward pass. For our engines and for yours.

    under_test = EngineUnderTest(MyEngine, config=config, stop_ids=frozenset({2}), scratch=tmp_path)
    for check in CHECKS:
        check(under_test)

The policy must be small, in float32, and stop now and then (a few per cent of its tokens are EOS); `max_model_tokens`
must be at least 160. Checks raise AssertionError. They leave the engine idle, with whatever weights they loaded last.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from tbactl.config.engine import EngineConfig
from tbactl.errors import ChildFailedError
from tbactl.protocols import Engine, FinishedRequest, GenerationRequest
from tbactl.types import Completion, SamplingParams
from tbactl.weight_sync.fingerprint import fingerprint
from tbactl.weight_sync.weights_file import write_safetensors

TOLERANCE = 1e-3
MIN_MODEL_TOKENS = 160
_PROMPT_TOKENS = 70  # some whole blocks of any cache


class EngineUnderTest:
    """An engine, the policy it holds as a transformers model, and a folder for weights files.

    Args:
        make_engine: the engine's class.
        config: for it.
        stop_ids: the tokens that end a completion.
        scratch: an empty folder.
    """

    def __init__(
        self,
        make_engine: Callable[[EngineConfig], Engine],
        *,
        config: EngineConfig,
        stop_ids: frozenset[int],
        scratch: Path,
    ) -> None:
        assert config.max_model_tokens >= MIN_MODEL_TOKENS
        self.config = config
        self.stop_ids = stop_ids
        self._scratch = scratch
        self._numbers = itertools.count()
        self._model: Any = AutoModelForCausalLM.from_pretrained(config.policy_directory, dtype=torch.float32).eval()
        self._original = {name: tensor.clone() for name, tensor in self._model.state_dict().items()}
        self.engine = make_engine(config)
        # vLLM adds compilation to some classes of transformers, in place; the reference stays what it was.
        for module in self._model.modules():
            module.do_not_compile = True

    @property
    def state(self) -> dict[str, Tensor]:
        """The reference's parameters, tied ones included."""
        return self._model.state_dict()

    @property
    def has_tied_head(self) -> bool:
        """Whether input and output embeddings are one parameter."""
        return bool(self._model.config.tie_word_embeddings)

    def change_policy(self, *, amount: float = 0.1) -> None:
        """Make reference and engine another policy, and see that the engine says which."""
        torch.manual_seed(next(self._numbers))
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self._original[name] + amount * torch.randn_like(parameter))
        self.load(self.write(self.state))

    def write(self, state: dict[str, Tensor]) -> Path:
        """A weights file."""
        path = self._scratch / f"weights-{next(self._numbers)}.safetensors"
        write_safetensors(path, state)
        return path

    def load(self, path: Path) -> None:
        """Load a file as the next version."""
        version = self.engine.policy_version + 1
        assert self.engine.load_policy(path, version=version) == fingerprint(path)
        assert self.engine.policy_version == version

    def prompts(self, count: int) -> list[tuple[int, ...]]:
        """Different prompts of some length."""
        texts = (f"{i} " + "The quick brown fox jumps over the lazy dog. " * 4 for i in range(count))
        return [self.engine.encode(text)[:_PROMPT_TOKENS] for text in texts]

    def submit(
        self, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, *, seeds: Sequence[int | None] | None = None
    ) -> list[str]:
        """Submit a request for each prompt; returns their ids."""
        names = [f"request-{next(self._numbers)}" for _ in prompts]
        for i, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            seed = seeds[i] if seeds is not None else None
            self.engine.submit(
                GenerationRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, seed=seed)
            )
        return names

    def finish(self, *, max_steps: int = 2000) -> dict[str, FinishedRequest]:
        """Step until nothing is left."""
        finished: dict[str, FinishedRequest] = {}
        for _ in range(max_steps):
            if not self.engine.num_unfinished:
                return finished
            for request in self.engine.step():
                assert request.request_id not in finished, "returned twice"
                finished[request.request_id] = request
        raise AssertionError(f"{self.engine.num_unfinished} requests unfinished after {max_steps} steps")

    def complete(
        self, prompts: Sequence[tuple[int, ...]], sampling: SamplingParams, *, seeds: Sequence[int | None] | None = None
    ) -> list[Completion]:
        """Completions of the prompts, in order."""
        names = self.submit(prompts, sampling, seeds=seeds)
        finished = self.finish()
        return [_completion_of(finished[name]) for name in names]

    def expected_logprobs(
        self, prompt: tuple[int, ...], token_ids: tuple[int, ...], sampling: SamplingParams
    ) -> Tensor:
        """Log-probs over the vocabulary for each token of a completion, by teacher forcing: [tokens, vocabulary]."""
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *token_ids]])
            logits = self._model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        logits[: sampling.min_new_tokens, sorted(self.stop_ids)] = -math.inf
        logprobs = (logits / (sampling.temperature or 1.0)).log_softmax(-1)
        if sampling.temperature and sampling.top_p < 1.0:
            ordered, order = logprobs.sort(-1, descending=True)
            is_outside = ordered.exp().cumsum(-1) - ordered.exp() >= sampling.top_p
            logprobs = logprobs.masked_fill(is_outside.scatter(-1, order, is_outside), -math.inf).log_softmax(-1)
        return logprobs

    def assert_logprobs(
        self, prompts: Sequence[tuple[int, ...]], completions: Sequence[Completion], sampling: SamplingParams
    ) -> None:
        """Each token's log-prob is the reference's."""
        for prompt, completion in zip(prompts, completions, strict=True):
            expected = self.expected_logprobs(prompt, completion.token_ids, sampling)
            chosen = expected.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0]
            torch.testing.assert_close(torch.tensor(completion.logprobs), chosen, atol=TOLERANCE, rtol=0)


def _completion_of(request: FinishedRequest) -> Completion:
    assert request.error is None and request.completion is not None, request
    assert len(request.completion.token_ids) == len(request.completion.logprobs) > 0
    return request.completion


def eos_is_counted_once(under_test: EngineUnderTest) -> None:
    """EOS is the last token of a completion that stopped, and nowhere in others."""
    sampling = SamplingParams(max_new_tokens=40)
    completions = under_test.complete(under_test.prompts(4) * 12, sampling)
    assert {c.finish_reason for c in completions} == {"stop", "length"}, "the policy must stop now and then"
    for completion in completions:
        has_stopped = completion.finish_reason == "stop"
        assert [i in under_test.stop_ids for i in completion.token_ids[:-1]].count(True) == 0
        assert (completion.token_ids[-1] in under_test.stop_ids) == has_stopped
        assert has_stopped or len(completion.token_ids) == sampling.max_new_tokens
        assert completion.first_version == completion.last_version == under_test.engine.policy_version


def logprobs_are_those_of_the_sampled_distribution(under_test: EngineUnderTest) -> None:
    """At a temperature, at temperature 1 and inside a nucleus, EOS included."""
    for sampling in (
        SamplingParams(max_new_tokens=40, temperature=0.7),
        SamplingParams(max_new_tokens=40),
        SamplingParams(max_new_tokens=20, temperature=0.9, top_p=0.8),
    ):
        prompts = under_test.prompts(4) * 4
        under_test.assert_logprobs(prompts, under_test.complete(prompts, sampling), sampling)


def sampling_follows_the_distribution(under_test: EngineUnderTest) -> None:
    """The mean log-prob of first tokens is minus the entropy, within its error."""
    sampling = SamplingParams(max_new_tokens=1, temperature=0.7)
    prompt = under_test.prompts(1)[0]
    completions = under_test.complete([prompt] * 256, sampling)
    logprobs = under_test.expected_logprobs(prompt, (0,), sampling)[0]
    mean = float((logprobs.exp() * logprobs).sum())
    deviation = float((logprobs.exp() * (logprobs - mean) ** 2).sum().sqrt())
    measured = sum(c.logprobs[0] for c in completions) / len(completions)
    assert abs(measured - mean) < 5 * deviation / math.sqrt(len(completions)) + TOLERANCE
    assert len({c.token_ids for c in completions}) > 1


def temperature_zero_is_greedy(under_test: EngineUnderTest) -> None:
    """The most likely token each time, with its log-prob at temperature 1."""
    sampling = SamplingParams(max_new_tokens=24, temperature=0.0)
    prompts = under_test.prompts(6)
    completions = under_test.complete(prompts, sampling)
    under_test.assert_logprobs(prompts, completions, sampling)
    for prompt, completion in zip(prompts, completions, strict=True):
        best = under_test.expected_logprobs(prompt, completion.token_ids, sampling).max(-1).values
        torch.testing.assert_close(torch.tensor(completion.logprobs), best, atol=TOLERANCE, rtol=0)


def lengths_are_respected(under_test: EngineUnderTest) -> None:
    """No more than max_new_tokens; no EOS among the first min_new_tokens, whose log-probs leave it out."""
    prompts = under_test.prompts(4) * 2
    for length in (1, 7):
        completions = under_test.complete(prompts, SamplingParams(max_new_tokens=length))
        assert max(len(c.token_ids) for c in completions) == length
    sampling = SamplingParams(max_new_tokens=40, min_new_tokens=30)
    completions = under_test.complete(prompts, sampling)
    assert min(len(c.token_ids) for c in completions) > 30
    under_test.assert_logprobs(prompts, completions, sampling)


def stop_strings_end_a_completion(under_test: EngineUnderTest) -> None:
    """With the token that completes one, which is kept whole, log-prob and text; not among the first min_new_tokens."""
    prompts = under_test.prompts(4) * 6
    texts = [c.text for c in under_test.complete(prompts, SamplingParams(max_new_tokens=40))]
    # Frequent ones, so that some completions end by them.
    stop_strings = tuple(_most_common_substring(texts, length=length) for length in (1, 2))
    tokenizer = AutoTokenizer.from_pretrained(under_test.config.policy_directory)
    for least in (0, 6):
        sampling = SamplingParams(max_new_tokens=40, min_new_tokens=least, stop_strings=stop_strings)
        completions = under_test.complete(prompts, sampling)
        under_test.assert_logprobs(prompts, completions, sampling)
        num_stopped = 0
        for completion in completions:
            ids = completion.token_ids
            assert len(ids) > least, "it ends too early"
            prefixes = [tokenizer.decode(ids[:i], skip_special_tokens=True) for i in range(len(ids) + 1)]
            assert completion.text == prefixes[-1]
            # How often one has occurred; those among the first tokens do not matter.
            counts = [sum(text.count(stop) for stop in stop_strings) for text in prefixes[least:]]
            assert max(counts[:-1], default=counts[0]) == counts[0], "it goes on after a stop string"
            has_stopped = counts[-1] > counts[0]
            has_ended = has_stopped or ids[-1] in under_test.stop_ids
            assert (completion.finish_reason == "stop") == has_ended
            assert has_ended or len(ids) == sampling.max_new_tokens
            num_stopped += has_stopped
        assert num_stopped > 0, stop_strings


def _most_common_substring(texts: Sequence[str], *, length: int) -> str:
    found = (text[i : i + length] for text in texts for i in range(len(text) - length + 1))
    # Of different characters: those of "aa" could be counted in two ways.
    counts = Counter(part for part in found if part.isascii() and len(set(part)) == length)
    return counts.most_common(1)[0][0]


def seeded_requests_do_not_depend_on_company(under_test: EngineUnderTest) -> None:
    """The same seed gives the same completion, alone or among many others; other seeds give others."""
    sampling = SamplingParams(max_new_tokens=12, min_new_tokens=12)
    prompts = under_test.prompts(1) * 6 + under_test.prompts(50)
    seeds = range(11, 11 + len(prompts))
    among = under_test.complete(prompts, sampling, seeds=seeds)[:6]
    alone = [under_test.complete([p], sampling, seeds=[s])[0] for p, s in zip(prompts[:6], seeds, strict=False)]
    assert [c.token_ids for c in among] == [c.token_ids for c in alone]
    assert len({c.token_ids for c in among}) == len(among)


def nothing_is_lost_among_many(under_test: EngineUnderTest) -> None:
    """Requests submitted while others run, more than run together, each come back once."""
    names: list[str] = []
    seen: list[str] = []
    for i in range(24):
        sampling = SamplingParams(max_new_tokens=1 + i)
        names += under_test.submit(under_test.prompts(8), sampling)
        seen += [finished.request_id for finished in under_test.engine.step()]
    assert under_test.engine.num_unfinished == len(names) - len(seen)
    seen += under_test.finish()
    assert sorted(seen) == sorted(names)
    assert under_test.engine.num_unfinished == 0 and under_test.engine.step() == []


def a_bad_request_fails_alone(under_test: EngineUnderTest) -> None:
    """A prompt that is too long comes back as an error; the others are answered."""
    good, too_long = under_test.prompts(1)[0], under_test.prompts(1)[0] * 20
    names = under_test.submit([good, too_long, good], SamplingParams(max_new_tokens=4))
    finished = under_test.finish()
    assert [finished[name].error is None for name in names] == [True, False, True]
    assert finished[names[1]].completion is None


def new_weights_take_effect_at_once(under_test: EngineUnderTest) -> None:
    """New requests, on prompts known before, are answered by the new policy: no stale cache, no stale head."""
    sampling = SamplingParams(max_new_tokens=16, temperature=0.7)
    prompts = under_test.prompts(3) * 2
    before = under_test.complete(prompts, sampling, seeds=range(6))
    under_test.change_policy()
    after = under_test.complete(prompts, sampling, seeds=range(6))
    under_test.assert_logprobs(prompts, after, sampling)
    assert [c.token_ids for c in before] != [c.token_ids for c in after]


def running_requests_survive_new_weights(under_test: EngineUnderTest) -> None:
    """Weights change fifty times under running requests: none is lost, each carries its span of versions."""
    names: list[str] = []
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    finished: dict[str, FinishedRequest] = {}
    for _ in range(50):
        version = under_test.engine.policy_version
        new = under_test.submit(under_test.prompts(2), SamplingParams(max_new_tokens=20))
        names += new
        first |= dict.fromkeys(new, version)
        for request in [*under_test.engine.step(), *under_test.engine.step()]:
            finished[request.request_id] = request
            last[request.request_id] = version
        under_test.change_policy(amount=0.05)
    rest = under_test.finish()
    finished |= rest
    last |= dict.fromkeys(rest, under_test.engine.policy_version)
    assert sorted(finished) == sorted(names)
    spans = {name: _completion_of(request) for name, request in finished.items()}
    assert all((spans[n].first_version, spans[n].last_version) == (first[n], last[n]) for n in names)
    assert any(c.last_version - c.first_version >= 5 for c in spans.values())
    # What starts now owes nothing to the fifty policies before.
    sampling = SamplingParams(max_new_tokens=12)
    prompts = under_test.prompts(2)
    under_test.assert_logprobs(prompts, under_test.complete(prompts, sampling), sampling)


def a_file_that_does_not_fit_is_refused(under_test: EngineUnderTest) -> None:
    """A missing, unknown or misshapen parameter is an error that names it; a good file loads afterwards."""
    under_test.change_policy()
    state = {name: tensor.clone() for name, tensor in under_test.state.items()}
    name = next(n for n, t in state.items() if n.endswith("norm.weight") and t.dim() == 1)
    unknown_bias = name.removesuffix("weight") + "unknown.bias"
    wrong = {
        "is missing": {n: t for n, t in state.items() if n != name},
        "is unknown": state | {unknown_bias: state[name]},
        "has shape": state | {name: torch.cat([state[name], state[name]])},
    }
    version = under_test.engine.policy_version
    for complaint, broken in wrong.items():
        try:
            under_test.engine.load_policy(under_test.write(broken), version=version + 1)
        except ChildFailedError as error:
            assert complaint in str(error), error
        else:
            raise AssertionError(f"accepted a file in which a parameter {complaint}")
    assert under_test.engine.policy_version == version
    new_weights_take_effect_at_once(under_test)


def a_tied_head_must_be_given(under_test: EngineUnderTest) -> None:
    """Without the head in the file an engine would keep the old one, silently: it must refuse."""
    if not under_test.has_tied_head:
        return
    under_test.change_policy()
    head = "lm_head.weight"
    without = {name: tensor for name, tensor in under_test.state.items() if name != head}
    try:
        under_test.engine.load_policy(under_test.write(without), version=under_test.engine.policy_version + 1)
    except ChildFailedError as error:
        assert head in str(error)
    else:
        raise AssertionError(f"accepted a file without {head}")
    new_weights_take_effect_at_once(under_test)


def scores_are_those_of_the_reference(under_test: EngineUnderTest) -> None:
    """`sequence_logprobs` is at temperature 1, for tokens nobody sampled, of any length."""
    under_test.change_policy()
    prompts = under_test.prompts(3)
    sequences = [(prompts[0], 1), (prompts[1], 69), (prompts[2][:30], 7), (prompts[0], 20)]
    scores = under_test.engine.sequence_logprobs(sequences)
    for (token_ids, prompt_length), score in zip(sequences, scores, strict=True):
        assert len(score) == len(token_ids) - prompt_length
        prompt, rest = token_ids[:prompt_length], token_ids[prompt_length:]
        expected = under_test.expected_logprobs(prompt, rest, SamplingParams(max_new_tokens=1))
        chosen = expected.gather(-1, torch.tensor(rest)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(score), chosen, atol=TOLERANCE, rtol=0)


def scoring_disturbs_nobody(under_test: EngineUnderTest) -> None:
    """Scores can be asked while requests run, and what finishes meanwhile is returned by the next step."""
    prompts = under_test.prompts(8)
    sampling = SamplingParams(max_new_tokens=3)
    names = under_test.submit(prompts, sampling)
    quiet = under_test.engine.sequence_logprobs([(prompts[0], 10)])
    finished = {request.request_id for request in under_test.engine.step()}
    loud = under_test.engine.sequence_logprobs([(prompts[0], 10)])
    torch.testing.assert_close(torch.tensor(quiet), torch.tensor(loud), atol=TOLERANCE, rtol=0)
    names += under_test.submit(prompts, SamplingParams(max_new_tokens=30))
    under_test.engine.sequence_logprobs([(p, 5) for p in prompts])
    assert finished | set(under_test.finish()) == set(names)


CHECKS: tuple[Callable[[EngineUnderTest], None], ...] = (
    eos_is_counted_once,
    logprobs_are_those_of_the_sampled_distribution,
    sampling_follows_the_distribution,
    temperature_zero_is_greedy,
    lengths_are_respected,
    stop_strings_end_a_completion,
    seeded_requests_do_not_depend_on_company,
    nothing_is_lost_among_many,
    a_bad_request_fails_alone,
    new_weights_take_effect_at_once,
    running_requests_survive_new_weights,
    a_file_that_does_not_fit_is_refused,
    a_tied_head_must_be_given,
    scores_are_those_of_the_reference,
    scoring_disturbs_nobody,
)
