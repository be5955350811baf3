"""Makes the run directory: everything on disk that a run's processes need before the first of them starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal

from tbactl.checkpoints.store import steps_of, usable_checkpoint
from tbactl.clock import Clock, SystemClock
from tbactl.config.hardware import Profile
from tbactl.config.layout import SHM_ROOT, CheckpointLayout, ProcessConfig, RunLayout, ShmLayout
from tbactl.config.run_record import RunRecord, read_run_record
from tbactl.config.sections import RunConfig
from tbactl.errors import CheckpointError, ConfigError
from tbactl.supervision.atomic import point_symlink, write_text
from tbactl.supervision.environment import describe_environment
from tbactl.supervision.events import utc
from tbactl.supervision.identity import is_alive, start_ticks
from tbactl.supervision.placement import Place, Placement, child_environment, place, this_machine
from tbactl.supervision.policy import published_bytes, resolve_policy
from tbactl.supervision.process import ProcessSpec
from tbactl.supervision.shared_memory import check_free_space, shared_memory_layout

# For run.json, page.json, summary.json and the last events, many times over.
RESERVE_BYTES = 2**18

# What starts a child: from its settings and the file they are written to.
ArgvBuilder = Callable[[ProcessConfig, Path], tuple[str, ...]]


def child_argv(process: ProcessConfig, path: Path) -> tuple[str, ...]:
    """The real children. With Ray, a searcher's is the bridge to where it runs."""
    is_elsewhere = process.role == "searcher" and process.run.searchers.launcher == "ray"
    module = "tbactl.cluster" if is_elsewhere else f"tbactl.{process.role}"
    return (sys.executable, "-m", module, "--config", str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDirectory:
    """A run that could start: its files are written, nothing is running and nothing lies in shared memory yet."""

    config: RunConfig
    layout: RunLayout
    shm: ShmLayout
    record: RunRecord
    specs: tuple[ProcessSpec, ...]
    """All processes, trainer ranks first."""
    resume_checkpoint: Path | None

    @property
    def root(self) -> Path:
        """The run directory."""
        return self.layout.root

    def free_reserve(self) -> None:
        """Give back the room kept for the last words: from here on they are written."""
        self.layout.reserve.unlink(missing_ok=True)

    def write_record(self, record: RunRecord) -> None:
        """Replace run.json."""
        write_text(self.layout.identity, record.model_dump_json(indent=2) + "\n")


def prepare(
    config: RunConfig,
    *,
    recipe_name: str,
    profile: Profile,
    resume: Path | None = None,
    clock: Clock | None = None,
    argv_for: ArgvBuilder = child_argv,
    shm_root: Path = SHM_ROOT,
) -> RunDirectory:
    """Make a new run directory or, with `resume`, a new attempt in an old one, and write all its files.

    Args:
        config: all settings.
        recipe_name: for run.json.
        profile: `cpu` hides every device from the run.
        resume: run directory to continue, which the caller has locked (`run_lock.py`).
        clock: names the directory; None: the system's.
        argv_for: command line of a child.
        shm_root: where shared memory will be made.

    Raises:
        CapacityError: the shared memory will not fit.
        CheckpointError: there is nothing to resume from, or nothing undamaged.
        ConfigError: the run to resume is still alive, a policy is not found, or processes cannot be placed.
    """
    clock = clock or SystemClock()
    machine = this_machine(profile=profile)
    placement = place(config, machine)
    policy_directory = resolve_policy(config)
    check_free_space(config, policy_bytes=published_bytes(config.policy, directory=policy_directory), root=shm_root)
    if resume is None:
        layout, attempt, checkpoint = RunLayout(new_directory(config, clock=clock)), 1, None
    else:
        layout = RunLayout(resume.resolve())
        attempt, checkpoint = resumable(resume).attempt + 1, usable_checkpoint(latest_checkpoint(layout))
    logs = layout.logs / f"attempt_{attempt:03d}"
    logs.mkdir(parents=True, exist_ok=True)  # from an attempt that was stopped right here
    point_symlink(layout.logs / "latest", logs.name)
    layout.config.mkdir(exist_ok=True)
    write_text(layout.environment, json.dumps(describe_environment(machine), indent=2) + "\n")
    write_text(layout.resolved_config, config.model_dump_json(indent=2) + "\n")
    shm = shared_memory_layout(layout.root, root=shm_root)
    processes = _process_configs(
        config, layout=layout, shm=shm, placement=placement, policy_directory=policy_directory, checkpoint=checkpoint
    )
    places = (*placement.trainers, *placement.searchers)
    run = RunDirectory(
        config=config,
        layout=layout,
        shm=shm,
        record=_new_record(config, recipe_name=recipe_name, profile=profile, attempt=attempt, shm=shm, clock=clock),
        specs=tuple(
            _write_process(process, place=own, logs=logs, argv_for=argv_for)
            for process, own in zip(processes, places, strict=True)
        ),
        resume_checkpoint=checkpoint,
    )
    run.write_record(run.record)
    _reserve(layout.reserve)
    return run


def _reserve(path: Path) -> None:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)


def new_directory(config: RunConfig, *, clock: Clock) -> Path:
    """Make `runs_dir/NAME-<local time>`, with -2, -3, ... when several runs start in one second."""
    parent = config.runs_dir.expanduser().resolve()
    parent.mkdir(parents=True, exist_ok=True)
    stem = f"{config.name}-{datetime.fromtimestamp(clock.wall_s()):%Y%m%d-%H%M%S}"
    number = 1
    while True:
        directory = parent / (stem if number == 1 else f"{stem}-{number}")
        try:
            directory.mkdir(mode=0o700)  # prompts, completions and settings are the user's own
        except FileExistsError:
            number += 1
        else:
            return directory


def latest_checkpoint(layout: RunLayout) -> Path:
    """The newest complete checkpoint: where `latest` points, else the newest that has its manifest.

    Only checkpoints of this run count: a `latest` that leads anywhere else is passed over, as one that is missing.

    Raises:
        CheckpointError: there is none.
    """
    own = steps_of(layout.checkpoints)
    for candidate in (*_where_latest_points(layout, own), *reversed(own)):
        if CheckpointLayout(candidate).manifest.is_file():
            return candidate
    raise CheckpointError(
        f"{layout.root} holds no complete checkpoint to resume from ({len(own)} incomplete). Start a new run; "
        f"checkpoint.period sets how often one is written."
    )


def _where_latest_points(layout: RunLayout, own: Sequence[Path]) -> list[Path]:
    try:
        return [checkpoint for checkpoint in own if checkpoint.samefile(layout.latest_checkpoint)]
    except OSError:  # it is missing, leads nowhere, or in a circle
        return []


def resumable(resume: Path) -> RunRecord:
    """The record of a run that can be resumed as far as processes go.

    Raises:
        ConfigError: it is no run, or still alive.
    """
    record = read_run_record(resume)
    if is_alive(record.pid, started=record.pid_start_ticks):
        raise ConfigError(f"{resume} is still running (pid {record.pid}); stop it first: `tbactl stop {resume}`.")
    return record


def _new_record(
    config: RunConfig, *, recipe_name: str, profile: Profile, attempt: int, shm: ShmLayout, clock: Clock
) -> RunRecord:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    return RunRecord(
        name=config.name,
        recipe=recipe_name,
        profile=profile,
        attempt=attempt,
        pid=os.getpid(),
        pid_start_ticks=ticks,
        shm_directory=shm.root,
        started_at=utc(clock.wall_s()),
    )


def _process_configs(
    config: RunConfig,
    *,
    layout: RunLayout,
    shm: ShmLayout,
    placement: Placement,
    policy_directory: Path,
    checkpoint: Path | None,
) -> list[ProcessConfig]:
    def process(role: Literal["trainer", "searcher"], index: int, own: Place) -> ProcessConfig:
        return ProcessConfig(
            role=role,
            index=index,
            cores=own.cores,
            run=config,
            run_directory=layout.root,
            shm_directory=shm.root,
            policy_directory=policy_directory,
            resume_checkpoint=checkpoint,
        )

    trainers = [process("trainer", rank, own) for rank, own in enumerate(placement.trainers)]
    return trainers + [process("searcher", index, own) for index, own in enumerate(placement.searchers)]


def _write_process(process: ProcessConfig, *, place: Place, logs: Path, argv_for: ArgvBuilder) -> ProcessSpec:
    path = process.layout.config / f"{process.role}-{process.index}.json"
    write_text(path, process.model_dump_json(indent=2) + "\n")
    return ProcessSpec(
        role=process.role,
        index=process.index,
        argv=argv_for(process, path),
        environment=child_environment(place, shm_directory=process.shm_directory),
        log_path=logs / f"{process.role}-{process.index}.log",
    )
