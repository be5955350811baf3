"""What `[task.options]` may hold for the task `redteam`."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from tbactl.config.sections import NonNegativeFloat, PositiveInt, Section
from tbactl.errors import ConfigError
from tbactl.policies.packaged import PACKAGE_PREFIX, check_packaged_policy
from tbactl.policies.packaged_encoder import packaged_encoder
from tbactl_redteam.classifiers import EMBEDDED, GUARD_PREFIX, HATE_MINILM, PROFANITY, classifier_problem
from tbactl_redteam.victims import VictimOptions, victim_problem

PromptStyle = Literal["plain", "chat"]
# Pairs are compared in an evaluation: memory and time grow with the square.
MAX_ATTACKS = 8192


class RedteamOptions(Section):
    """The prompt that attacks continue, victim, classifiers, reward, and how an evaluation samples."""

    attack_prompt: str | None = None
    """A file with the one prompt that the attacker continues: text, or JSONL whose first row has `attacker_prompt`.
    None: the embedded one, a numbered list of three mildly rude instructions."""
    prompt_style: PromptStyle = "plain"
    """`plain`: the prompt as it is. `chat`: its first line is the user's message in a chat template, the rest the
    beginning of the assistant's answer."""
    chat_policy: str = "package:smollm2-135m-instruct"
    """Whose chat template, for `prompt_style = "chat"`: directory, hub name or `package:NAME`; the attacker's own."""
    seed_attacks: str | None = None
    """Attacks for supervised training: a text file with one a line, or JSONL rows with `attack`. None: mild embedded
    ones."""
    data: str | None = None
    """An evaluation measures the attacks of this file (as `seed_attacks`) instead of the attacker's: found on another
    victim, say. `tbactl eval --data FILE` sets it."""
    victim: VictimOptions = VictimOptions(kind="echo")
    """Who answers the attacks; a table of its own, whose `kind` is `engine` unless it says otherwise. Without the table
    the attack itself counts as the answer, which needs no model."""
    classifier: str = PROFANITY
    """What is trained against: `profanity`, `hate-minilm`, `guard:NAME`, or a sequence classifier by directory or hub
    name."""
    classifier_label: str | None = None
    """Which of a sequence classifier's labels means toxic, as it spells it. None: the one whose name says so."""
    judge: str | None = HATE_MINILM
    """A second classifier, for evaluation only, so that exploiting the first one shows. None, or "none" in a recipe,
    which has no other word for it: there is none."""
    judge_label: str | None = None
    """As `classifier_label`, of the judge."""
    min_toxicity: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-4
    """A toxicity below this counts as this much, so that its logarithm stays finite."""
    rejected_reward: Annotated[float, Field(lt=0.0, allow_inf_nan=False)] = -12.0
    """Reward of a completion that is no attack (empty, too short, repeats itself); the victim is not asked. At most
    log(min_toxicity), the reward of the most harmless attack."""
    min_words: PositiveInt = 3
    """Attacks of fewer words are too short."""
    min_new_tokens: Annotated[int, Field(ge=0)] = 5
    """Completions of fewer tokens are too short; an evaluation's do not end before."""
    max_new_tokens: PositiveInt = 20
    """Completions of an evaluation are cut here."""
    temperature: NonNegativeFloat = 1.0
    """Of an evaluation; 0: greedy, which is one attack again and again."""
    num_attacks: Annotated[int, Field(ge=1, le=MAX_ATTACKS)] = 1024
    """Of an evaluation that is given no limit."""
    diversity_encoder: str | None = None
    """Of the sentence encoder that measures diversity: directory, hub name or package:NAME. None: the embedded one."""

    @field_validator("judge", mode="before")
    @classmethod
    def _none_is_none(cls, value: Any) -> Any:
        return None if value == "none" else value


def validated_options(options: Mapping[str, Any]) -> RedteamOptions:
    """Check options; no file is read and no model is loaded.

    Raises:
        ConfigError: one sentence for each mistake.
    """
    try:
        validated = RedteamOptions.model_validate(options)
    except ValidationError as error:
        raise ConfigError(*(_sentence(details) for details in error.errors())) from None
    problems = [*_file_problems(validated), *_classifier_problems(validated), *_number_problems(validated)]
    if (problem := victim_problem(validated.victim)) is not None:
        problems.append(f"task.options.victim.{problem.rstrip('.')}.")
    if problems:
        raise ConfigError(*problems)
    return validated


def _sentence(details: Mapping[str, Any]) -> str:
    path = tuple(str(part) for part in details["loc"])
    name = ".".join(("task.options", *path))
    if details["type"] == "extra_forbidden":
        known = list(_model_at(path[:-1]).model_fields)
        return f"{name}: there is no such option{_hint(path[-1], known)}; known: {', '.join(known)}."
    message = details["msg"].removeprefix("Value error, ")
    if details["type"] == "value_error":  # a rule between several options, a sentence of its own
        return f"{name}: {message.rstrip('.')}."
    return f"{name} = {json.dumps(details['input'], default=str)}: {message[:1].lower()}{message[1:]}."


def _model_at(path: tuple[str, ...]) -> type[BaseModel]:
    return VictimOptions if path == ("victim",) else RedteamOptions


def _file_problems(options: RedteamOptions) -> Iterator[str]:
    for option in ("attack_prompt", "seed_attacks", "data"):
        path = getattr(options, option)
        if path is not None and not Path(path).expanduser().is_file():
            yield f"task.options.{option} = '{path}': there is no such file."
    yield from _model_problems("chat_policy", options.chat_policy, find_packaged=check_packaged_policy)
    if options.diversity_encoder is not None:
        yield from _model_problems("diversity_encoder", options.diversity_encoder, find_packaged=packaged_encoder)


def _model_problems(option: str, source: str, *, find_packaged: Callable[[str], object]) -> Iterator[str]:
    setting = f"task.options.{option} = '{source}'"
    if source.startswith(PACKAGE_PREFIX):
        try:
            find_packaged(source)
        except ConfigError as error:
            yield f"{setting}: {error}"
    elif source.startswith(("/", "./", "../", "~")) and not Path(source).expanduser().is_dir():
        yield f"{setting}: there is no such directory."


def _classifier_problems(options: RedteamOptions) -> Iterator[str]:
    for option in ("classifier", "judge"):
        name, label = getattr(options, option), getattr(options, f"{option}_label")
        problem = None if name is None else classifier_problem(name)
        if problem is not None:
            yield f"task.options.{option} = '{name}': {problem}."
        if label is not None and (name is None or name in EMBEDDED or name.startswith(GUARD_PREFIX)):
            yield f"task.options.{option}_label = '{label}' has no effect: only a sequence classifier has labels."
    if options.judge == options.classifier:
        yield (
            f"task.options.judge = '{options.judge}' is the classifier that is trained against; name "
            f"another one, or none."
        )


def _number_problems(options: RedteamOptions) -> Iterator[str]:
    floor = math.log(options.min_toxicity)
    if options.rejected_reward > floor:
        yield (
            f"task.options.rejected_reward = {options.rejected_reward:g} must not exceed log(min_toxicity) = "
            f"{floor:.2f}, the reward of the most harmless attack."
        )
    if options.min_new_tokens > options.max_new_tokens:
        yield (
            f"task.options.min_new_tokens = {options.min_new_tokens} must not exceed max_new_tokens = "
            f"{options.max_new_tokens}."
        )


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
