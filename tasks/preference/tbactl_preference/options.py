"""What `[task.options]` may hold for the task `preference`."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbactl.errors import ConfigError
from tbactl.policies.packaged import PACKAGE_PREFIX, check_packaged_policy
from tbactl_preference.reward_models import reward_model_problem
from tbactl_preference.scoring import ROUGE_L

DOCSTRINGS = "docstrings"
TLDR = "tldr"
# Where the document goes in a template.
SLOT = "{document}"
TABLE_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet")

PromptStyle = Literal["plain", "chat"]


class PreferenceOptions(BaseModel):
    """Documents, the prompt made of them, rewards, and how an evaluation samples."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    documents: str = DOCSTRINGS
    """`docstrings` (of installed packages, offline), `tldr` (the paper's set, from the hub), another hub name like
    `owner/name:configuration`, or a .jsonl, .jsonl.gz or .parquet path. One file serves both splits: one document in
    eight is held out, and not trained on even where `data` is given."""
    data: str | None = None
    """Held-out documents from here (a path, or a hub name's `test_split`) instead of those of `documents`."""
    prompt_column: str | None = None
    """Column of the document; None: `query` of `tldr`, else the first of a few usual names."""
    summary_column: str | None = None
    """Column of the human summary (text, or a list of them: the first); None: the first of a few usual names."""
    test_split: str | None = None
    """Split of a hub name that is held out; None: `validation` of `tldr`, else `test`."""
    prompt_style: PromptStyle = "plain"
    """`plain`: the template as it is. `chat`: the template is the user's message in a chat template."""
    template: str | None = None
    """The prompt, with `{document}` in it. None: `tldr` verbatim, else a line that asks for a summary."""
    chat_policy: str = "package:smollm2-135m-instruct"
    """Whose chat template, for `prompt_style = "chat"`: a directory, a hub name or `package:NAME`; the policy's own."""
    reward_model: str = ROUGE_L
    """What is trained against: `rouge-l` (F1 against the human summary), or the name or path of a reward model."""
    gold_reward_model: str | None = None
    """For evaluation only: another one, so that over-optimisation shows. None: win rate is not measured."""
    reference_policy: str | None = None
    """What `tbactl eval` measures the divergence from (whatever it takes as CHECKPOINT). None: not measured. Not given:
    for a run's checkpoint the policy that the run started from."""
    missing_eos_reward: Annotated[float, Field(allow_inf_nan=False)] = -1.0
    """Reward of a completion without end of text, instead of its score."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 64
    """Completions of an evaluation are cut here."""
    temperature: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Of an evaluation; 0: greedy."""


def validated_options(options: Mapping[str, Any]) -> PreferenceOptions:
    """Check options; no data and no model is read.

    Raises:
        ConfigError: one sentence for each mistake.
    """
    try:
        validated = PreferenceOptions.model_validate(options)
    except ValidationError as error:
        raise ConfigError(*(_sentence(details) for details in error.errors())) from None
    problems = [
        *_source_problems(validated),
        *_template_problems(validated),
        *_reward_problems(validated),
        *_policy_problems(validated),
    ]
    if problems:
        raise ConfigError(*problems)
    return validated


def is_table(source: str) -> bool:
    """Whether a source is the path of a file, not the name of a data set."""
    return source.endswith(TABLE_SUFFIXES)


def _sentence(details: Mapping[str, Any]) -> str:
    name = ".".join(str(part) for part in details["loc"])
    known = list(PreferenceOptions.model_fields)
    if details["type"] == "extra_forbidden":
        return f"task.options.{name}: there is no such option{_hint(name, known)}; known: {', '.join(known)}."
    return f"task.options.{name} = {json.dumps(details['input'], default=str)}: {details['msg'].lower()}."


def _source_problems(options: PreferenceOptions) -> Iterator[str]:
    names = [DOCSTRINGS, TLDR]
    for option, source in (("documents", options.documents), ("data", options.data)):
        if source is None or source in names:
            continue
        if is_table(source):
            if not Path(source).expanduser().is_file():
                yield f"task.options.{option} = '{source}': there is no such file."
        elif "/" not in source:
            yield (
                f"task.options.{option} = '{source}' is unknown{_hint(source, names)}; allowed are {', '.join(names)}, "
                f"a hub name like 'owner/name:configuration', or the path of a .jsonl, .jsonl.gz or .parquet "
                f"file."
            )


def _template_problems(options: PreferenceOptions) -> Iterator[str]:
    if options.template is not None and options.template.count(SLOT) != 1:
        yield f"task.options.template = {json.dumps(options.template)} must hold {SLOT} exactly once."


def _reward_problems(options: PreferenceOptions) -> Iterator[str]:
    for option in ("reward_model", "gold_reward_model"):
        name = getattr(options, option)
        if name in (None, ROUGE_L):
            continue
        problem = reward_model_problem(name)
        if problem is not None:
            yield f"task.options.{option} = '{name}': {problem}."
    if options.gold_reward_model == options.reward_model:
        yield (
            f"task.options.gold_reward_model = '{options.gold_reward_model}' is the reward model that is trained "
            f"against; name another one, or none."
        )


def _policy_problems(options: PreferenceOptions) -> Iterator[str]:
    """Of packages only: of a directory or a hub name whoever reads it says what is wrong."""
    used = {"reference_policy": options.reference_policy}
    if options.prompt_style == "chat":
        used["chat_policy"] = options.chat_policy
    for option, policy in used.items():
        if policy is None or not policy.startswith(PACKAGE_PREFIX):
            continue
        try:
            check_packaged_policy(policy)
        except ConfigError as error:
            yield f"task.options.{option} = '{policy}': {error}"


def _hint(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" (did you mean '{near[0]}'?)" if near else ""
