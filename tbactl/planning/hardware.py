"""The file of `tbactl plan --hardware FILE`: what a plan needs to know besides the recipe."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from tbactl.config.loading import validated
from tbactl.config.problems import Problem
from tbactl.config.recipes import read_toml, shown_path
from tbactl.config.sections import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section
from tbactl.config.settings import Settings
from tbactl.errors import ConfigError


class MachineSection(Section):
    """What there is, and what it costs."""

    cores: Annotated[int, Field(ge=0)] = 0
    """CPU cores that all processes of this machine share, where there are no devices; 0: each process has a device of
    its own. Searchers that Ray places are on other machines."""
    num_devices: PositiveInt | None = None
    """Devices of this machine; a plan that needs more says so. None: as many as are needed."""
    memory_gib: PositiveFloat | None = None
    """Of one device; with `cores`, of the whole machine. None: nothing is checked."""
    shared_memory_gib: PositiveFloat | None = None
    """/dev/shm of the machine. None: nothing is checked."""
    price_per_hour: NonNegativeFloat = 0.0
    """Of one device; with `cores`, of the whole machine."""
    currency: str = "USD"
    """Of the price."""
    flops_per_s: PositiveFloat | None = None
    """Peak of one device in the policy's type, for costs that are not given."""
    memory_bytes_per_s: PositiveFloat | None = None
    """Peak bandwidth of one device's memory, for costs that are not given."""
    link_bytes_per_s: PositiveFloat | None = None
    """Between device and host memory, for the time of a sync that is not given."""
    efficiency: Annotated[float, Field(gt=0.0, le=1.0)] = 0.4
    """Share of these peaks that is reached."""


class CostsSection(Section):
    """How long things take, in seconds. What is not given is estimated from the machine's peaks, roughly."""

    generate_s: PositiveFloat | None = None
    """Of one searcher for one trajectory, when `searchers.max_concurrent_groups` are in flight: 1 / (trajectories per
    second)."""
    generate_spread: NonNegativeFloat = 0.3
    """Standard deviation of the time of a group, as a share of its mean."""
    mean_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Mean time of a group's completions, as a share of its longest one's; 1: all take as long. In mode async others
    take the places of those that are done, so a group takes 1 / `mean_share` times as long as a completion."""
    fixed_share: Fraction = 0.3
    """Share of a decode step, at full load, that does not depend on how many sequences are in flight. Near 1: memory
    bandwidth limits; near 0: arithmetic does."""
    train_s: PositiveFloat | None = None
    """Of one trainer rank for one trajectory, everything in an optimizer step but waiting and publishing included."""
    train_spread: NonNegativeFloat = 0.1
    """Standard deviation of the time of a step, as a share of its mean."""
    score_s: NonNegativeFloat = 0.0
    """Of a searcher's background thread for the reward of one trajectory."""
    publish_s: NonNegativeFloat | None = None
    """Of the trainer, to write the weights at a sync."""
    load_s: NonNegativeFloat | None = None
    """Of a searcher, to load and check them; it generates nothing meanwhile."""
    checkpoint_s: NonNegativeFloat = 0.0
    """Of the trainer, to write a checkpoint."""
    evaluate_s: NonNegativeFloat | None = None
    """Of searcher 0, for one evaluation, in which it starts nothing else. None: as long as generating so many."""
    measured_cores: PositiveInt = 1
    """With `machine.cores`: cores that one process had where these were measured."""
    barrier: bool = False
    """At a sync the trainer waits until each searcher has finished what it generates and holds the new weights, as the
    paper's code does. tbactl does not."""


class WorkloadSection(Section):
    """What is generated."""

    completion_tokens: PositiveFloat | None = None
    """Mean length of a completion. None: half of `searchers.max_new_tokens`."""
    prompt_tokens: PositiveFloat | None = None
    """Mean length of a prompt. None: half of `searchers.max_prompt_tokens`."""
    num_prompts: Annotated[int, Field(ge=0)] = 0
    """Different training prompts; 0: so many that none comes twice."""
    trainable_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of groups of which anything can be drawn: where all completions are equal, nothing can."""


class ModelSection(Section):
    """The policy's shape. Needed only where the policy is not on this machine."""

    num_parameters: PositiveInt
    """All of them, tied ones once."""
    num_layers: PositiveInt
    """Transformer blocks."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    num_key_value_heads: PositiveInt
    """Heads whose keys and values are cached."""
    head_size: PositiveInt
    """Width of one head."""
    vocabulary_size: PositiveInt
    """Width of the logits."""
    tied_embeddings: bool = False
    """The head is the embedding. Searchers get it twice."""


class Hardware(Section):
    """All of the file. Every key may be left out."""

    machine: MachineSection = MachineSection()
    costs: CostsSection = CostsSection()
    workload: WorkloadSection = WorkloadSection()
    model: ModelSection | None = None


def load_hardware(path: Path | None, *, measured: Hardware | None = None) -> Hardware:
    """Read the file; what it does not say is as measured, or the default.

    Args:
        path: TOML; None: what was measured alone.
        measured: from a finished run.

    Raises:
        ConfigError: with one sentence for every mistake found.
    """
    settings = Settings()
    if measured is not None:
        settings.merge(_given(measured), file="measured", lines={})
    if path is not None:
        values, lines = read_toml(path)
        settings.merge(values, file=shown_path(path), lines=lines)
    problems: list[str] = []
    hardware = validated(Hardware, settings, check=_problems, problems=problems)
    if problems or hardware is None:
        raise ConfigError(*problems)
    return hardware


def to_toml(hardware: Hardware, *, comment: str) -> str:
    """As a file that `load_hardware` reads; only what differs from the defaults."""
    lines = [f"# {comment}"]
    for section, values in _given(hardware).items():
        lines += ["", f"[{section}]", *(f"{name} = {_toml_value(value)}" for name, value in values.items())]
    text = "\n".join(lines) + "\n"
    tomllib.loads(text)
    return text


def _problems(hardware: Hardware) -> Iterator[Problem]:
    machine = hardware.machine
    if machine.cores and machine.num_devices is not None:
        yield Problem(
            ("machine", "cores"),
            f"machine.cores = {machine.cores} means that there are no devices, but machine.num_devices = "
            f"{machine.num_devices}: write cores = 0 into the file if there are devices (what --from has measured does "
            f"not count then), or leave num_devices out.",
        )


def _given(hardware: Hardware) -> dict[str, dict[str, Any]]:
    document = hardware.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    return {section: values for section, values in document.items() if values}


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return f"{value:.4g}" if isinstance(value, float) else str(value)
