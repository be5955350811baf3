"""What the speed benchmarks share: workers that wait for their turn, medians with spread, targets, the machine.

Contestants of a ratio are measured in turns, each in a process of its own that rests while the others work: what else
the machine does meets all of them alike, and none has the libraries of another in its process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.table import Table

from tbactl.ipc.child import die_with_parent

CLOCKS = ("seconds", "cpu_seconds")
# For a worker to leave: libraries take their time to be torn down.
LEAVE_S = 20.0
# For one answer: loading a model and the longest measurement, on a busy machine.
LIMIT_S = 1800.0
ROOT = Path(__file__).resolve().parent.parent
# A pipe has no width of its own; 80 columns would cut the names.
console = Console(width=None if sys.stdout.isatty() else 120)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine(*packages: str) -> dict[str, Any]:
    """Where it is measured, with which versions of `packages` (None: not installed), and of which commit."""
    return {
        "processor": _processor(),
        "cores": num_cores(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "versions": {package: _version(package) for package in ("tbactl", *packages)},
        "commit": commit(),
    }


def commit(directory: Path = ROOT) -> str | None:
    """Of the repository that a directory is in; with a digest of what was changed since; None: there is none."""
    described = _git("describe", "--always", "--dirty", "--abbrev=12", directory=directory)
    if described is None:
        return None
    name = described.decode().strip()
    if not name.endswith("-dirty"):
        return name
    return f"{name}-{hashlib.sha256(_git('diff', 'HEAD', directory=directory) or b'').hexdigest()[:8]}"


def _git(*arguments: str, directory: Path) -> bytes | None:
    try:
        return subprocess.run(
            ["git", "-C", str(directory), *arguments],
            check=True,
            capture_output=True,
            # Only looks: it does not get in the way of another git.
            env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"},
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def differences(kept: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Between two `machine()`s, as a reader wants them named; "": none. The load is what a result may differ in."""
    was, here = _flat(kept), _flat(now)
    names = [name for name in dict.fromkeys((*was, *here)) if was.get(name) != here.get(name)]
    return ", ".join(f"{name} {was.get(name) or 'none'} (now {here.get(name) or 'none'})" for name in names)


def _flat(where: Mapping[str, Any]) -> dict[str, Any]:
    apart = ("load_average", "versions")
    return {name: value for name, value in where.items() if name not in apart} | dict(where.get("versions", {}))


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """Of each repetition, in which both were measured one after the other: more even than a ratio of medians."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def shown(numbers: Mapping[str, float], form: str = ",.0f") -> str:
    """`median (low to high)`."""
    return "{} ({} to {})".format(*(format(numbers[name], form) for name in ("median", "low", "high")))


def shown_over(row: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Ours over a contestant's by both clocks, from `Speeds.compared`; empty for ours."""
    over, by_cpu = (shown(row[by][name], ".2f") if name in row[by] else "" for by in ("over", "over_by_cpu"))
    return over, by_cpu


def target(
    name: str, value: float, *, at_least: float | None = None, at_most: float | None = None, unit: str = ""
) -> dict[str, Any]:
    """A number and the bound it is held against: exactly one of the two."""
    bound = at_least if at_most is None else at_most
    assert bound is not None and (at_least is None) != (at_most is None)
    is_met = value >= bound if at_least is not None else value <= bound
    return {
        "name": name,
        "value": value,
        "bound": f"{'>=' if at_least is not None else '<='} {bound:g}{unit}",
        "unit": unit,
        "is_met": is_met,
    }


def table_of(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def report(results: Mapping[str, Any], *tables: Table, file: Path) -> None:
    """Print tables, targets and the machine, and that of every result in `kept`; write everything as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    for table in tables:
        console.print(table)
    rows = [
        (t["name"], f"{t['value']:.3g}{t['unit']}", t["bound"], "met" if t["is_met"] else "MISSED")
        for t in results.get("targets", [])
    ]
    if rows:
        console.print(table_of("targets", ("", "measured", "bound", ""), rows))
    if "machine" in results:
        console.print(shown_machine(results["machine"]))
    for name, where in results.get("kept", {}).items():
        console.print(f"{name} was measured on: {shown_machine(where)}")
    console.print(f"written: {file}")


def shown_machine(where: Mapping[str, Any]) -> str:
    """One line: processor, cores, load, versions, commit."""
    versions = [f"{name} {number}" for name, number in where["versions"].items() if number]
    known = [*versions, f"commit {where['commit']}"] if where["commit"] else versions
    return f"{where['processor']}, {where['cores']} cores, load {where['load_average']}; {', '.join(known)}"


class Stopwatch:
    """Wall-clock and CPU seconds since it was made; the latter of all threads of this process."""

    def __init__(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        """`seconds` and `cpu_seconds`, as answers hold them."""
        return {"seconds": time.perf_counter() - self._wall_s, "cpu_seconds": time.process_time() - self._cpu_s}


class Speeds:
    """Tokens a second of contestants, a number for each repetition.

    By wall-clock, which counts; and by CPU time, which is as good a ratio where all use as many threads, and which
    other work on the machine hardly changes.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._speeds: dict[str, dict[str, list[float]]] = {name: {clock: [] for clock in CLOCKS} for name in names}

    def note(self, name: str, seen: Mapping[str, float]) -> None:
        """An answer with `tokens` and the times of a `Stopwatch`."""
        for clock in CLOCKS:
            self._speeds[name][clock].append(seen["tokens"] / seen[clock])

    def by(self, clock: str) -> dict[str, list[float]]:
        """Of each contestant."""
        return {name: speeds[clock] for name, speeds in self._speeds.items()}

    def compared(self, ours: str) -> dict[str, Any]:
        """Spreads, and ratios of ours over each other's by both clocks."""
        over = {
            clock: {name: ratios(values[ours], values[name]) for name in values if name != ours}
            for clock, values in ((clock, self.by(clock)) for clock in CLOCKS)
        }
        return {
            "tokens_per_s": {name: spread(values) for name, values in self.by("seconds").items()},
            "over": over["seconds"],
            "over_by_cpu": over["cpu_seconds"],
        }


class Worker:
    """A child process that measures when it is asked: `python -m MODULE ARGUMENTS ANSWERS`, which calls `serve`.

    Args:
        module: what to run.
        arguments: before the descriptor.
        threads: that its libraries compute with.
        python: interpreter, of another environment where that is needed.
        environment: on top of this process's.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        threads: int,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = " ".join((module, *arguments))
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115  closed by close()
        reading, writing = os.pipe()
        # The working directory, where benchmarks/ is, is on the path of `python -m`.
        variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **os.environ}
        self._process = subprocess.Popen(
            [python, "-W", "ignore", "-m", module, *arguments, str(writing)],
            cwd=ROOT,
            env=variables | {"OMP_NUM_THREADS": str(threads)} | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            text=True,
            pass_fds=(writing,),
            preexec_fn=die_with_parent,
        )
        os.close(writing)
        self._answers = os.fdopen(reading, encoding="utf-8")

    def ask(self, **details: Any) -> dict[str, Any]:
        """Let it work; returns its answer.

        Raises:
            SystemExit: it has failed, with the end of what it wrote, or takes too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(details) + "\n")
            self._process.stdin.flush()
            if not select.select([self._answers], [], [], LIMIT_S)[0]:
                raise SystemExit(f"{self.name} has not answered for {LIMIT_S:.0f} s")
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        if line:
            return json.loads(line)
        self._process.wait(timeout=LEAVE_S)
        self._log.seek(0)
        ending = self._log.read().decode(errors="replace").splitlines()[-15:]
        raise SystemExit("\n".join((f"{self.name} failed, exit code {self._process.returncode}:", *ending)))

    def close(self) -> None:
        """End it: no more questions, so that it removes what it made; one that does not leave is killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def question() -> dict[str, Any] | None:
    """In a worker: the next question; None when there is none any more."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


def answer(descriptor: int, numbers: Mapping[str, Any]) -> None:
    """In a worker: what was asked for."""
    os.write(descriptor, json.dumps(numbers).encode() + b"\n")


def serve(action: Callable[[dict[str, Any]], Mapping[str, Any]], *, descriptor: int) -> None:
    """In a worker: answer questions until there are no more."""
    while (asked := question()) is not None:
        answer(descriptor, action(asked))
