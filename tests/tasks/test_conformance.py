"""Every task that is installed, found by its entry point: a new task is tested without being listed here."""

from __future__ import annotations

import itertools
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tbactl import registry
from tbactl.testing.task_conformance import check_task
from tbactl.types import EvaluationResult, Prompt, Reward, SamplingParams

TASKS_ON_DISK = sorted((Path(__file__).parents[2] / "tasks").glob("*/pyproject.toml"))


@pytest.mark.fault("R-10")
@pytest.mark.parametrize("name", sorted(registry.available("tbactl.tasks")))
def test_installed_task_conforms(name):
    task = registry.load("tbactl.tasks", name)()
    try:
        assert check_task(task) == []
    finally:
        task.close()


@pytest.mark.parametrize("project", TASKS_ON_DISK, ids=lambda path: path.parent.name)
def test_task_on_disk_is_installed_with_its_entry_points(project):
    declared = tomllib.loads(project.read_text())["project"]["entry-points"]["tbactl.tasks"]
    installed = {point.name: point.value for point in entry_points(group="tbactl.tasks")}
    assert declared.items() <= installed.items()


class GoodTask:
    name = "good"

    def prompts(self, split, *, seed):
        first = 0 if split == "train" else 10**6
        for number in itertools.count(first + 1000 * seed):
            yield Prompt(prompt_id=number, text=f"{split} {number}", facts={"answer": "42"})

    def score(self, prompt, completions):
        return [Reward(value=float("42" in item.text)) for item in completions]

    def evaluation_prompts(self, *, limit, seed):
        return list(itertools.islice(self.prompts("test", seed=seed), limit or 10))

    def evaluate(self, generate, *, limit, seed, policy_version):
        prompts = self.evaluation_prompts(limit=limit, seed=seed)
        generate(prompts, 1, SamplingParams(max_new_tokens=1))
        return EvaluationResult(
            task=self.name, policy_version=policy_version, num_prompts=len(prompts), metrics={"accuracy": 1.0}
        )

    def self_check(self):
        return []

    def close(self):
        pass


class EndingStream(GoodTask):
    def prompts(self, split, *, seed):
        return itertools.islice(super().prompts(split, seed=seed), 10)


class UnseededStream(GoodTask):
    calls = itertools.count()

    def prompts(self, split, *, seed):
        return super().prompts(split, seed=seed + 10 * next(self.calls))


class OverlappingSplits(GoodTask):
    def prompts(self, split, *, seed):
        return super().prompts("train", seed=seed)


class FixedPrompt(GoodTask):
    has_fixed_prompt = True

    def prompts(self, split, *, seed):
        return itertools.repeat(Prompt(prompt_id=3, text="always the same", facts={"answer": "42"}))


class SeveralFixedPrompts(GoodTask):
    has_fixed_prompt = True


class UndeclaredFixedPrompt(FixedPrompt):
    has_fixed_prompt = False


class ReusedId(GoodTask):
    def prompts(self, split, *, seed):
        for number, prompt in enumerate(super().prompts(split, seed=seed)):
            yield Prompt(prompt_id=prompt.prompt_id - number % 2, text=prompt.text)


class ShortList(GoodTask):
    def score(self, prompt, completions):
        return super().score(prompt, completions)[:1]


class NoneReward(GoodTask):
    def score(self, prompt, completions):
        return [None for _ in completions]


class NanReward(GoodTask):
    def score(self, prompt, completions):
        return [Reward(value=float("nan")) for _ in completions]


class IntegerReward(GoodTask):
    def score(self, prompt, completions):
        return [Reward(value=1) for _ in completions]


class RaisingReward(GoodTask):
    def score(self, prompt, completions):
        return [Reward(value=float(item.text.encode().count(b"4"))) for item in completions]


class SortedRewards(GoodTask):
    def score(self, prompt, completions):
        return sorted(super().score(prompt, completions), key=lambda reward: reward.value)


class OtherEvaluation(GoodTask):
    def evaluate(self, generate, *, limit, seed, policy_version):
        return super().evaluate(generate, limit=limit, seed=seed + 1, policy_version=policy_version)


class NoMetric(GoodTask):
    def evaluate(self, generate, *, limit, seed, policy_version):
        super().evaluate(generate, limit=limit, seed=seed, policy_version=policy_version)
        return EvaluationResult(task="good", policy_version=policy_version, num_prompts=4, metrics={})


class FailingSelfCheck(GoodTask):
    def self_check(self):
        return ["the gold answer scores 0"]


class MissingMethod:
    name = "incomplete"


@pytest.mark.parametrize("task", [GoodTask, FixedPrompt])
def test_check_task_good_one_has_no_problem(task):
    assert check_task(task()) == []


@pytest.mark.parametrize(
    ("task", "problem"),
    [
        (EndingStream, "must be endless"),
        (UnseededStream, "must depend on the seed alone"),
        (OverlappingSplits, "train and test share"),
        (SeveralFixedPrompts, "more than one prompt"),
        (UndeclaredFixedPrompt, "train and test share"),
        (ReusedId, "stands for two texts"),
        (ShortList, "rewards are expected as a list"),
        (NoneReward, "must be a tbactl.types.Reward"),
        (NanReward, "must be a finite float"),
        (IntegerReward, "must be a finite float"),
        (RaisingReward, "lone surrogates"),
        (SortedRewards, "in another order"),
        (OtherEvaluation, "asks for other prompts"),
        (NoMetric, "reports no metric"),
        (FailingSelfCheck, "self_check: the gold answer scores 0"),
        (MissingMethod, "lacks a method"),
    ],
)
def test_check_task_broken_one_is_found(task, problem):
    assert any(problem in found for found in check_task(task()))


@pytest.mark.fault("I-42")
def test_check_task_slow_reward_is_found():
    class Slow(GoodTask):
        def score(self, prompt, completions):
            import time

            time.sleep(0.002)
            return super().score(prompt, completions)

    assert any("the limit is 0.001 s" in problem for problem in check_task(Slow(), time_limit_s=0.001))
