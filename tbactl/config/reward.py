"""All settings of `tbactl reward train`, a recipe of kind "reward", and the rules between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from tbactl.config.problems import Problem, setting_problem
from tbactl.config.sections import OUTPUT_NAME_PATTERN, Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section

CONSTRUCTED = "constructed"


class RewardDataSection(Section):
    """Comparisons: which of two completions of a prompt is the better one."""

    source: str = CONSTRUCTED
    """`constructed`: human summaries against spoilt ones, from the documents of `options`; or a .jsonl, .jsonl.gz or
    .parquet file, or a hub name like `owner/name:configuration`."""
    options: dict[str, Any] = Field(default={})
    """Of constructed pairs: options of the preference task that say which documents (`documents`, `prompt_column` ...).
    Their split `test` is held out."""
    origins: tuple[str, ...] = ()
    """Of constructed pairs: train on documents whose origin begins with one of these (package names); empty: all."""
    kinds: tuple[str, ...] = ()
    """Of constructed pairs: ways to spoil a summary; empty: all."""
    split: str = "train"
    """Of a hub name."""
    chosen_column: str = "chosen"
    """Column of the better completion."""
    rejected_column: str = "rejected"
    """Column of the worse completion."""
    prompt_column: str | None = None
    """Column of the prompt; None: both completions begin with it, as in hh-rlhf."""
    prompt_end: str | None = None
    """Without `prompt_column`: the prompt is what both have in common, up to the last of these; None: up to the last
    blank or line break."""
    held_out_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Share of prompts of a file or hub name that is not trained on."""
    max_pairs: Annotated[int, Field(ge=0)] = 0
    """Train on at most this many pairs, chosen at random; 0: all."""
    max_held_out_pairs: Annotated[int, Field(ge=0)] = 0
    """Measure on at most this many pairs, chosen at random; 0: all."""


class RewardModelSection(Section):
    """What is trained."""

    kind: Literal["encoder", "lexical", "classifier"] = "encoder"
    """`encoder`: a head over a frozen sentence encoder. `lexical`: a head over counts of words, no neural network below
    it. `classifier`: all weights of a Hugging Face model."""
    path: str | None = None
    """Of a classifier: hub name or directory to start from, a language model or a sequence classifier."""
    num_hidden: Annotated[int, Field(ge=0, le=256)] = 0
    """Of a head: tanh units besides its linear part; 0: linear."""
    l2: NonNegativeFloat = 1e-3
    """Of a head: half of this times the sum of squared weights is added to the loss; features are standardised."""


class RewardTrainingSection(Section):
    """How a classifier is trained; without effect on heads, which are fitted to the end."""

    num_epochs: PositiveFloat = 1.0
    """Passes over the pairs."""
    batch_pairs: PositiveInt = 64
    """Pairs in an optimizer step."""
    micro_batch_pairs: PositiveInt = 8
    """Pairs in a forward pass. Changes speed and memory, not the result."""
    learning_rate: PositiveFloat = 1e-5
    """Peak learning rate of AdamW."""
    warmup_fraction: Fraction = 0.05
    """Share of the steps used for linear warm-up; then it falls to 0 like a cosine."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Gradient norm is clipped here; 0 never clips."""
    max_tokens: PositiveInt = 512
    """Longer texts lose their beginning."""


class RewardConfig(Section):
    """All settings of `tbactl reward train`: a reward model from comparisons (Bradley-Terry)."""

    name: str = Field(pattern=OUTPUT_NAME_PATTERN)
    """Names the output directory, `runs_dir`/`name`, which is the reward model."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of constructed pairs, of what is held out, of data order and initial weights."""
    runs_dir: Path = Path("runs")
    """Where output directories are made."""
    data: RewardDataSection = RewardDataSection()
    model: RewardModelSection = RewardModelSection()
    training: RewardTrainingSection = RewardTrainingSection()
    threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads; 0: all cores. The same number gives the same bits."""


def reward_problems(config: RewardConfig) -> Iterator[Problem]:
    """The rules of reward training."""
    model, data = config.model, config.data
    if model.kind == "classifier" and model.path is None:
        yield Problem(("model", "path"), "model.path is missing: a classifier starts from a model; name one.")
    if model.kind != "classifier" and model.path is not None:
        yield setting_problem(config, "model.path", f"has no effect when model.kind = {model.kind}; leave it away.")
    if data.prompt_column is not None and data.prompt_end is not None:
        yield setting_problem(config, "data.prompt_end", "has no effect beside data.prompt_column; leave it away.")
    if data.chosen_column == data.rejected_column:
        yield setting_problem(config, "data.rejected_column", "must not be data.chosen_column.")
    if data.source != CONSTRUCTED:
        for name in ("options", "origins", "kinds"):
            if getattr(data, name):
                yield setting_problem(config, f"data.{name}", f"has no effect unless data.source = {CONSTRUCTED}.")


def reward_warnings(config: RewardConfig) -> Iterator[Problem]:
    """Settings that were given and that nothing reads."""
    section, names = "training", tuple(RewardTrainingSection.model_fields)
    if config.model.kind == "classifier":
        section, names = "model", ("num_hidden", "l2")
    given = getattr(config, section).model_fields_set
    for name in names:
        if name in given:
            yield setting_problem(config, f"{section}.{name}", f"has no effect when model.kind = {config.model.kind}.")
