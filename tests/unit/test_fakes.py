"""The fakes are real enough: exact log-probs, seeded sampling, gradients that raise the reward, exact resume."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tbactl.config.engine import EngineConfig
from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import CheckpointError, ChildFailedError, ConfigError, TaskError
from tbactl.protocols import Engine, GenerationRequest, Learner, ProbeBatch, Task
from tbactl.testing.fake_engine import FakeEngine
from tbactl.testing.fake_learner import FakeLearner
from tbactl.testing.fake_policy import EOS, VOCABULARY, FakePolicy, decode_tokens, encode_text
from tbactl.testing.fake_task import FakeTask
from tbactl.testing.faults import Fault, FaultInjector
from tbactl.testing.task_conformance import check_task
from tbactl.types import Completion, Prompt, SamplingParams, Trajectory, TrajectoryGroup

PLAIN = SamplingParams(max_new_tokens=12)


def make_engine(tmp_path: Path, *, seed: int = 0, **options) -> FakeEngine:
    return FakeEngine(EngineConfig(policy_directory=tmp_path, seed=seed, max_model_tokens=64, options=options))


def make_learner(tmp_path: Path, **options) -> FakeLearner:
    run = RunConfig.model_validate(
        {
            "name": "t", "task": {"kind": "fake"}, "policy": {"path": "fake"}, "searchers": {"temperature": 1.0},
            "trainer": {"kind": "fake", "options": options},
        }
    )  # fmt: skip
    return FakeLearner(
        ProcessConfig(
            role="trainer", index=0, run=run, run_directory=tmp_path, shm_directory=tmp_path, policy_directory=tmp_path
        )
    )


def complete(
    engine: Engine, count: int, *, sampling: SamplingParams = PLAIN, seed: int | None = None
) -> list[Completion]:
    for i in range(count):
        request_seed = None if seed is None else seed + i
        request = GenerationRequest(
            request_id=f"{seed}-{i}", prompt_token_ids=(1, 2), sampling=sampling, seed=request_seed
        )
        engine.submit(request)
    found: dict[str, Completion] = {}
    while engine.num_unfinished:
        for finished in engine.step():
            assert finished.completion is not None
            found[finished.request_id] = finished.completion
    return [found[f"{seed}-{i}"] for i in range(count)]


def group_of(completions: list[Completion], *, prompt_id: int = 0) -> TrajectoryGroup:
    rewards = FakeTask().score(Prompt(prompt_id=prompt_id, text="x"), completions)
    return TrajectoryGroup(
        prompt_id=prompt_id,
        prompt_text="x",
        prompt_token_ids=(1, 2),
        trajectories=tuple(
            Trajectory(uid=i, completion=c, reward=r.value)
            for i, (c, r) in enumerate(zip(completions, rewards, strict=True))
        ),
        searcher=0,
        sequence_number=0,
    )


def test_fakes_are_what_the_protocols_ask_for(tmp_path: Path):
    engine: Engine = make_engine(tmp_path)
    learner: Learner = make_learner(tmp_path)
    assert isinstance(FakeTask(), Task)
    for part in (engine, learner, FakeTask()):
        part.close()


def test_letters_survive_encoding_and_decoding():
    assert decode_tokens(encode_text("azby")) == "azby"
    assert decode_tokens([1, EOS]) == "a"


def test_same_seed_gives_the_same_completions_and_another_seed_others(tmp_path: Path):
    first, again, other = (complete(make_engine(tmp_path, seed=s), 20) for s in (1, 1, 2))
    assert first == again != other


def test_seeded_request_does_not_depend_on_what_runs_beside_it(tmp_path: Path):
    alone = complete(make_engine(tmp_path), 1, seed=5)
    engine = make_engine(tmp_path, seed=9)
    engine.submit(
        GenerationRequest(request_id="other", prompt_token_ids=(3,), sampling=SamplingParams(max_new_tokens=3))
    )
    for i in range(2):
        engine.submit(GenerationRequest(request_id=str(i), prompt_token_ids=(1, 2), sampling=PLAIN, seed=5 + i))
    found = {}
    while engine.num_unfinished:
        found |= {finished.request_id: finished.completion for finished in engine.step()}
    assert found["0"] == alone[0] != found["1"]


@pytest.mark.fault("R-03")
def test_completions_keep_the_wire_types_promises(tmp_path: Path):
    completions = complete(make_engine(tmp_path), 200)
    assert {c.finish_reason for c in completions} == {"stop", "length"}
    for completion in completions:
        assert len(completion.token_ids) == len(completion.logprobs) <= 12
        assert (completion.token_ids[-1] == EOS) == (completion.finish_reason == "stop")
        assert EOS not in completion.token_ids[:-1]
        assert completion.text == decode_tokens(completion.token_ids)


def test_behaviour_logprobs_are_those_of_the_tempered_distribution(tmp_path: Path):
    FakePolicy(np.arange(VOCABULARY, dtype=np.float32) / 4).save(tmp_path / "model.safetensors")
    engine = make_engine(tmp_path)
    sampling = SamplingParams(max_new_tokens=8, temperature=0.5)
    logits = np.arange(VOCABULARY) / 4 / 0.5
    expected = logits - np.log(np.exp(logits).sum())
    for completion in complete(engine, 10, sampling=sampling):
        np.testing.assert_allclose(completion.logprobs, expected[list(completion.token_ids)], atol=1e-6)


def test_scores_at_temperature_one_leave_the_prompt_out(tmp_path: Path):
    engine = make_engine(tmp_path)
    (scores,) = engine.sequence_logprobs([((1, 2, 3, 4, EOS), 2)])
    table = FakePolicy.initial(tmp_path).log_probabilities()
    assert scores == tuple(table[[3, 4, EOS]])


def test_greedy_takes_the_likeliest_token(tmp_path: Path):
    logits = np.zeros(VOCABULARY, dtype=np.float32)
    logits[7] = 1.0
    FakePolicy(logits).save(tmp_path / "model.safetensors")
    sampling = SamplingParams(max_new_tokens=3, temperature=0.0)
    assert complete(make_engine(tmp_path), 1, sampling=sampling)[0].token_ids == (7, 7, 7)


def test_nucleus_and_minimum_length_hold(tmp_path: Path):
    logits = np.full(VOCABULARY, -20.0, dtype=np.float32)
    logits[[EOS, 1, 2]] = np.log([0.6, 0.3, 0.1])
    FakePolicy(logits).save(tmp_path / "model.safetensors")
    engine = make_engine(tmp_path)
    sampling = SamplingParams(max_new_tokens=6, top_p=0.85, min_new_tokens=2)
    completions = complete(engine, 50, sampling=sampling)
    # Without EOS the nucleus of the first two tokens is {1, 2}, renormalised; afterwards it is {EOS, 1}.
    assert {token for c in completions for token in c.token_ids[:2]} == {1, 2}
    assert {token for c in completions for token in c.token_ids[2:]} == {EOS, 1}
    assert min(len(c.token_ids) for c in completions) == 3


def test_stop_string_ends_a_completion_and_is_part_of_it(tmp_path: Path):
    sampling = SamplingParams(max_new_tokens=40, min_new_tokens=2, stop_strings=("a", "ef", "fe"))
    completions = complete(make_engine(tmp_path), 200, sampling=sampling)
    ends = Counter(c.text[-1] for c in completions if c.finish_reason == "stop" and c.token_ids[-1] != EOS)
    assert set(ends) == {"a", "e", "f"}
    for completion in completions:
        late = completion.text[2:]
        assert len(completion.token_ids) > 2 and "a" not in late[:-1]
        # A string of two letters may begin in the second token, but not end there.
        assert not {"ef", "fe"} & {completion.text[i - 1 : i + 1] for i in range(2, len(completion.text) - 1)}
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.text == decode_tokens(completion.token_ids)
        assert completion.finish_reason == "stop" or len(completion.token_ids) == 40


def test_stop_string_in_the_last_token_allowed_is_a_stop(tmp_path: Path):
    logits = np.full(VOCABULARY, -50.0, dtype=np.float32)
    logits[1] = 0.0
    FakePolicy(logits).save(tmp_path / "model.safetensors")
    sampling = SamplingParams(max_new_tokens=3, min_new_tokens=2, stop_strings=("a",))
    (completion,) = complete(make_engine(tmp_path), 1, sampling=sampling)
    assert (completion.text, completion.finish_reason) == ("aaa", "stop")


def test_sampling_follows_the_distribution(tmp_path: Path):
    logits = np.full(VOCABULARY, -20.0, dtype=np.float32)
    logits[[1, 2]] = np.log([0.75, 0.25])
    FakePolicy(logits).save(tmp_path / "model.safetensors")
    completions = complete(make_engine(tmp_path), 100, sampling=SamplingParams(max_new_tokens=20))
    counts = Counter(token for c in completions for token in c.token_ids)
    # 2000 draws: six standard deviations are 0.058.
    assert abs(counts[1] / sum(counts.values()) - 0.75) < 0.058


def test_weights_are_taken_between_two_tokens_and_the_span_is_recorded(tmp_path: Path):
    engine = make_engine(tmp_path)
    never_eos = SamplingParams(max_new_tokens=4, min_new_tokens=4)
    engine.submit(GenerationRequest(request_id="r", prompt_token_ids=(1,), sampling=never_eos))
    engine.step()
    logits = np.full(VOCABULARY, -50.0, dtype=np.float32)
    logits[5] = 0.0
    FakePolicy(logits).save(tmp_path / "new.safetensors")
    fingerprint = engine.load_policy(tmp_path / "new.safetensors", version=3)
    engine.step()
    engine.step()
    (finished,) = engine.step()
    assert finished.completion is not None and finished.completion.token_ids[1:] == (5, 5, 5)
    assert (finished.completion.first_version, finished.completion.last_version) == (0, 3)
    assert len(fingerprint) == 32 and engine.policy_version == 3


def test_weights_of_another_model_are_refused(tmp_path: Path):
    FakePolicy(np.zeros(5, dtype=np.float32)).save(tmp_path / "w.safetensors")
    with pytest.raises(ChildFailedError, match=r"\[5\]"):
        make_engine(tmp_path).load_policy(tmp_path / "w.safetensors", version=1)


def test_injected_request_failures_and_long_prompts_are_reported_not_raised(tmp_path: Path):
    engine = make_engine(tmp_path, fail_every=3)
    for i in range(6):
        engine.submit(GenerationRequest(request_id=str(i), prompt_token_ids=(1,), sampling=PLAIN))
    engine.submit(GenerationRequest(request_id="long", prompt_token_ids=(1,) * 64, sampling=PLAIN))
    errors = {}
    while engine.num_unfinished:
        errors |= {f.request_id: f.error for f in engine.step() if f.error}
    assert set(errors) == {"2", "5", "long"} and "64 tokens" in errors["long"]


def test_request_that_reaches_the_models_limit_is_cut(tmp_path: Path):
    engine = make_engine(tmp_path)
    sampling = SamplingParams(max_new_tokens=50, min_new_tokens=50)
    engine.submit(GenerationRequest(request_id="r", prompt_token_ids=(1,) * 60, sampling=sampling))
    while not (finished := engine.step()):
        pass
    assert finished[0].completion is not None
    assert len(finished[0].completion.token_ids) == 4 and finished[0].completion.finish_reason == "length"


def test_unknown_options_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="spede"):
        make_engine(tmp_path, spede=1)
    with pytest.raises(ConfigError, match="spede"):
        make_learner(tmp_path, spede=1)


def test_learner_raises_the_reward_of_what_the_engine_samples(tmp_path: Path):
    engine, learner = make_engine(tmp_path), make_learner(tmp_path)
    rewards = []
    for version in range(1, 61):
        groups = [group_of(complete(engine, 16), prompt_id=i) for i in range(4)]
        metrics = learner.update(groups, beta=0.01, should_abort=lambda: False).metrics
        rewards.append(metrics["objective/reward/mean"])
        learner.write_weights(tmp_path / "w.safetensors")
        engine.load_policy(tmp_path / "w.safetensors", version=version)
    assert np.mean(rewards[:5]) < 0.1 and np.mean(rewards[-5:]) > 0.5


def test_residual_vanishes_at_the_optimum(tmp_path: Path):
    learner = make_learner(tmp_path)
    constant = [Completion(token_ids=(1,), logprobs=(-1.0,), text="a", finish_reason="length")] * 4
    before = learner.probe_logprobs(ProbeBatch(sequences=(((0, 1), 1),)))
    metrics = learner.update([group_of(constant)], beta=0.1, should_abort=lambda: False).metrics
    assert metrics["objective/loss/mean"] == pytest.approx(0.0) and metrics["trainer/grad_norm/value"] == pytest.approx(
        0.0
    )
    assert learner.probe_logprobs(ProbeBatch(sequences=(((0, 1), 1),))) == before


def test_probe_agrees_between_learner_and_engine_unless_weights_are_ignored(tmp_path: Path):
    learner = make_learner(tmp_path)
    honest, stubborn = make_engine(tmp_path), make_engine(tmp_path, ignore_weights=True)
    learner.update([group_of(complete(honest, 8))], beta=0.01, should_abort=lambda: False)
    learner.write_weights(tmp_path / "w.safetensors")
    probe = ProbeBatch(sequences=(((1, 2, 3), 1), ((4, 5), 1)))
    expected = learner.probe_logprobs(probe)
    for engine, agrees in ((honest, True), (stubborn, False)):
        engine.load_policy(tmp_path / "w.safetensors", version=1)
        assert (engine.sequence_logprobs(probe.sequences) == expected) == agrees


def test_resumed_learner_goes_on_exactly(tmp_path: Path):
    engine = make_engine(tmp_path)
    batches = [[group_of(complete(engine, 8))] for _ in range(6)]
    first = make_learner(tmp_path)
    for batch in batches[:3]:
        first.update(batch, beta=0.01, should_abort=lambda: False)
    first.save(tmp_path / "saved")
    second = make_learner(tmp_path)
    second.load(tmp_path / "saved")
    for batch in batches[3:]:
        assert first.update(batch, beta=0.01, should_abort=lambda: False) == second.update(
            batch, beta=0.01, should_abort=lambda: False
        )
    with pytest.raises(CheckpointError, match="no state"):
        second.load(tmp_path)


def test_aborted_update_leaves_the_weights(tmp_path: Path):
    engine, learner = make_engine(tmp_path), make_learner(tmp_path, step_seconds=60.0)
    probe = ProbeBatch(sequences=(((1, 2), 1),))
    before = learner.probe_logprobs(probe)
    assert learner.update([group_of(complete(engine, 4))], beta=0.01, should_abort=lambda: True) is None
    assert learner.probe_logprobs(probe) == before


def test_exported_policy_is_found_by_an_engine(tmp_path: Path):
    engine, learner = make_engine(tmp_path), make_learner(tmp_path)
    learner.update([group_of(complete(engine, 8))], beta=0.01, should_abort=lambda: False)
    learner.export_policy(tmp_path / "export")
    probe = ProbeBatch(sequences=(((1, 2), 1),))
    assert make_engine(tmp_path / "export").sequence_logprobs(probe.sequences) == learner.probe_logprobs(probe)


def test_task_streams_are_the_same_for_a_seed_and_splits_do_not_meet():
    task = FakeTask(num_prompts=10)

    def ids(split: str, seed: int, count: int = 20) -> list[int]:
        stream = task.prompts(split, seed=seed)
        return [next(stream).prompt_id for _ in range(count)]

    assert ids("train", 1) == ids("train", 1) != ids("train", 2)
    assert sorted(ids("train", 1, 10)) == list(range(10))
    assert not set(ids("train", 1)) & set(ids("test", 1))
    with pytest.raises(TaskError, match="no split 'dev'"):
        next(task.prompts("dev", seed=0))


def test_task_evaluates_with_an_interval_around_the_mean(tmp_path: Path):
    engine = make_engine(tmp_path)

    def generate(prompts, num_completions, sampling):
        return [complete(engine, num_completions, sampling=sampling) for _ in prompts]

    result = FakeTask().evaluate(generate, limit=50, seed=0, policy_version=4)
    low, high = result.intervals["reward"]
    assert low < result.metrics["reward"] < high and result.num_prompts == 50 and result.policy_version == 4


def test_injected_reward_failures_are_data():
    answer = Completion(token_ids=(1,), logprobs=(0.0,), text="a", finish_reason="length")
    rewards = FakeTask(fail_every=2).score(Prompt(prompt_id=0, text=""), [answer] * 4)
    assert [reward.error is None for reward in rewards] == [True, False, True, False]


def test_fault_strikes_at_its_place_and_only_once(tmp_path: Path):
    faults = [Fault(kind="raise", where="update", after=2, once_file=tmp_path / "struck")]
    first = FaultInjector(faults)
    first.reach("step")
    first.reach("update")
    first.reach("update")
    with pytest.raises(RuntimeError, match="injected fault: raise at update after 2"):
        first.reach("update")
    second = FaultInjector(faults)
    for _ in range(5):
        second.reach("update")


def test_starving_engine_turns_and_finishes_nothing(tmp_path: Path):
    engine = make_engine(tmp_path, faults=[{"kind": "starve", "after": 1}])
    sampling = SamplingParams(max_new_tokens=1)
    engine.submit(GenerationRequest(request_id="first", prompt_token_ids=(1,), sampling=sampling))
    assert len(engine.step()) == 1
    engine.submit(GenerationRequest(request_id="second", prompt_token_ids=(1,), sampling=sampling))
    assert [engine.step() for _ in range(50)] == [[]] * 50 and engine.num_unfinished == 1


def test_fake_task_passes_the_conformance_suite():
    assert check_task(FakeTask()) == []
