"""The math task: what the extension point `tbactl.protocols.Task` asks for, put together."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbactl.errors import ConfigError, TaskError
from tbactl.protocols import Generate
from tbactl.types import Completion, EvaluationResult, Prompt, Reward
from tbactl_math.evaluation import EvaluationPlan, evaluate_policy
from tbactl_math.problems import Difficulty, generated_problems, load_problems, repeat_shuffled, split_of
from tbactl_math.reward import score_completion
from tbactl_math.sft_examples import sft_examples
from tbactl_math.verifier import Verifier

GENERATED = "gsm-symbolic"
# Names for data sets on the hub that have a train and a test split.
HUB_NAMES: Mapping[str, str] = {"gsm8k": "openai/gsm8k:main", "math": "nlile/hendrycks-MATH-benchmark"}
NUM_ENDLESS_TEST_PROBLEMS = 500
_POLICIES = Path(__file__).parent / "policies"
_NUM_CHECKED = 20


class MathOptions(BaseModel):
    """What `[task.options]` may hold for the task `math`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    problems: str = GENERATED
    """`gsm-symbolic` (generated without end), `gsm8k` or `math` (from the hub), another hub name, or a .jsonl path. One
    file serves both splits: one problem in eight is held out."""
    difficulty: Difficulty = "easy"
    """Of generated problems. `easy`: all numbers are integers <= 100 and the solution is short; `all`: every one."""
    data: str | None = None
    """Held-out problems from here (a .jsonl path or a hub name, its split `test`) instead of those of `problems`."""
    time_limit_s: Annotated[float, Field(gt=0.0, le=60.0)] = 3.0
    """For one symbolic comparison; then the verifier is killed and replaced, and the answer counts as wrong."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    """Completions of an evaluation are cut here."""
    num_samples: Annotated[int, Field(ge=1, le=1024)] = 1
    """Sampled completions for each prompt of an evaluation, for avg@k and pass@k; 1: greedy accuracy only."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.7
    """Of those samples."""


class MathTask:
    """Word problems with a final answer; reward 1 for the right one, 0 otherwise.

    Owns the symbolic verifier's worker process, which starts only when an answer needs it. `score` is thread-safe.

        task = MathTask({"problems": "gsm8k"})
        prompt = next(task.prompts("train", seed=0))
        rewards = task.score(prompt, completions)
    """

    name = "math"
    options_model = MathOptions
    reward_metrics = ("has_answer", "num_characters", "is_symbolic", "is_exhausted")

    def __init__(self, options: Mapping[str, Any] | None = None, /, **more_options: Any) -> None:
        """Check the options; nothing is read yet.

        Args:
            options: fields of `MathOptions`; as with `dict`, they may also be given by keyword.
            **more_options: likewise.

        Raises:
            ConfigError: an option is unknown or out of range, or a file is not there.
        """
        self.options = _validated({**(options or {}), **more_options})
        self._verifier = Verifier(time_limit_s=self.options.time_limit_s)

    def prompts(self, split: str, *, seed: int) -> Iterator[Prompt]:
        """Endless stream of "train" or "test" problems; finite data sets are repeated, each pass in its own order.

        Raises:
            TaskError: the split is unknown, or the data cannot be read.
        """
        finite = self._finite_problems(split)
        if finite is None:
            return generated_problems(split, seed=seed, difficulty=self.options.difficulty)
        return repeat_shuffled(finite, seed=seed)

    def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
        """One reward for each completion, with the reason; `prompt.facts["answer"]` is what is expected."""
        gold = prompt.facts.get("answer")
        if gold is None:
            raise TaskError(
                f'prompt {prompt.prompt_id} has no fact "answer" to compare with; it has {list(prompt.facts)}'
            )
        return [score_completion(completion, gold=gold, verifier=self._verifier) for completion in completions]

    def evaluation_prompts(self, *, limit: int, seed: int) -> list[Prompt]:
        """Held-out problems: the first ones of a data set in its own order, or of the endless stream of `seed`.

        Args:
            limit: how many; 0: the whole data set, or 500 of an endless stream.
            seed: of the endless stream.

        Raises:
            TaskError: the data cannot be read or is empty.
        """
        finite = self._finite_problems("test")
        if finite is not None:
            return finite[: limit or len(finite)]
        stream = generated_problems("test", seed=seed, difficulty=self.options.difficulty)
        return list(islice(stream, limit or NUM_ENDLESS_TEST_PROBLEMS))

    def evaluate(self, generate: Generate, *, limit: int, seed: int, policy_version: int) -> EvaluationResult:
        """Greedy accuracy on `evaluation_prompts`, and avg@k, pass@k where the options ask for samples.

        Raises:
            TaskError: the data cannot be read or is empty, or the engine leaves prompts unanswered.
        """
        plan = EvaluationPlan(
            max_new_tokens=self.options.max_new_tokens,
            num_samples=self.options.num_samples,
            temperature=self.options.temperature,
        )
        prompts = self.evaluation_prompts(limit=limit, seed=seed)
        return evaluate_policy(prompts, generate=generate, score=self.score, plan=plan, policy_version=policy_version)

    def self_check(self) -> list[str]:
        """Without a model: answers and solutions of both splits score 1, other answers 0, and the verifier works."""
        problems = [problem for split in ("train", "test") for problem in self._check_split(split)]
        symbolic = Prompt(prompt_id=0, text="", facts={"answer": "\\sqrt{12}"})
        for text, value in (("\\boxed{2\\sqrt{3}}", 1.0), ("\\boxed{3\\sqrt{2}}", 0.0)):
            reward = self.score(symbolic, [_completion(text)])[0]
            if reward.error or reward.value != value:
                problems.append(
                    f"symbolic verifier: {text} for \\sqrt{{12}} must score {value:g}: {reward.error or reward.reason}"
                )
        return problems

    def close(self) -> None:
        """End the verifier's worker."""
        self._verifier.close()

    def sft_examples(self, kind: str, seed: int) -> Iterator[tuple[str, str]]:
        """Endless (prompt, completion) pairs for supervised training: kind "worked" or "bare"."""
        return sft_examples(kind, seed, difficulty=self.options.difficulty)

    @staticmethod
    def policy_path(name: str) -> Path:
        """Directory of a policy that this package ships (`policy.path = "task:NAME"`).

        Raises:
            ConfigError: there is none of that name.
        """
        known = sorted(path.name for path in _POLICIES.iterdir() if path.is_dir()) if _POLICIES.is_dir() else []
        if name not in known:
            raise ConfigError(
                f"the math task ships no policy '{name}'{_hint(name, known)}; it has {', '.join(known) or 'none'}."
            )
        return _POLICIES / name

    def _finite_problems(self, split: str) -> list[Prompt] | None:
        """All problems of a split in their order; None where it is generated without end."""
        if split not in ("train", "test"):
            raise TaskError(f"there is no split '{split}' of the math task; choose 'train' or 'test'")
        source = self.options.data if split == "test" and self.options.data else self.options.problems
        if source == GENERATED:
            return None
        problems = load_problems(HUB_NAMES.get(source, source), split=split)
        if source == self.options.problems and _is_file(source):
            problems = [problem for problem in problems if split_of(problem.text) == split]
        return problems

    def _check_split(self, split: str) -> Iterator[str]:
        try:
            prompts = list(islice(self.prompts(split, seed=0), _NUM_CHECKED))
        except (TaskError, ImportError) as error:
            yield f"{split}: {error}"
            return
        for prompt in prompts:
            gold = prompt.facts["answer"]
            cases = {f"\\boxed{{{gold}}}": 1.0, f"#### {gold}": 1.0, prompt.facts.get("solution", gold): 1.0}
            near_miss = f"{gold}1" if gold.isdigit() else "987654321"
            cases |= {"": 0.0, "####": 0.0, "I do not know.": 0.0, f"#### {near_miss}": 0.0}
            rewards = self.score(prompt, [_completion(text) for text in cases])
            for (text, value), reward in zip(cases.items(), rewards, strict=True):
                if reward.error or reward.value != value:
                    shown, reason = json.dumps(text[-60:]), reward.error or reward.reason
                    yield f"{split}: problem {prompt.prompt_id}: {shown} must score {value:g}: {reason}"


def _validated(options: Mapping[str, Any]) -> MathOptions:
    try:
        validated = MathOptions.model_validate(options)
    except ValidationError as error:
        raise ConfigError(*(_sentence(details) for details in error.errors())) from None
    problems = [*_source_problems("problems", validated.problems), *_source_problems("data", validated.data)]
    if validated.num_samples > 1 and validated.temperature == 0.0:
        problems.append(
            f"task.options.temperature = 0 gives num_samples = {validated.num_samples} equal completions; raise it."
        )
    if problems:
        raise ConfigError(*problems)
    return validated


def _sentence(details: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in details["loc"])
    known = list(MathOptions.model_fields)
    if details["type"] == "extra_forbidden":
        return f"task.options.{name}: there is no such option{_hint(name, known)}; known: {', '.join(known)}."
    return f"task.options.{name} = {json.dumps(details['input'], default=str)}: {details['msg'].lower()}."


def _source_problems(option: str, source: str | None) -> Iterator[str]:
    names = [GENERATED, *HUB_NAMES] if option == "problems" else list(HUB_NAMES)
    if source is None or source in names or source in HUB_NAMES:
        return
    if _is_file(source):
        if not Path(source).expanduser().is_file():
            yield f"task.options.{option} = '{source}': there is no such file."
    elif "/" not in source:
        yield (
            f"task.options.{option} = '{source}' is unknown{_hint(source, names)}; allowed are {', '.join(names)}, "
            f"a hub name like 'openai/gsm8k:main', or the path of a .jsonl file."
        )


def _is_file(source: str) -> bool:
    return Path(source).suffix in (".jsonl", ".json")


def _hint(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""


def _completion(text: str) -> Completion:
    return Completion(token_ids=(), logprobs=(), text=text, finish_reason="stop")
