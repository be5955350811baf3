"""Which profile of a recipe fits this machine, found without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Profile = Literal["cpu", "gpu"]
PROFILES: tuple[Profile, ...] = ("cpu", "gpu")


@dataclass(frozen=True, slots=True)
class ProfileChoice:
    """The profile and, for the first line a run prints, why."""

    profile: Profile
    reason: str


def choose_profile(
    requested: Profile | None, *, root: Path = Path("/"), environment: Mapping[str, str] = os.environ
) -> ProfileChoice:
    """The requested profile, else `gpu` where an NVIDIA device can be used, else `cpu`.

    Args:
        requested: what `--profile` said.
        root: file system root to look under; another one in tests.
        environment: environment variables.
    """
    if requested is not None:
        return ProfileChoice(requested, "asked for with --profile")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return ProfileChoice("cpu", "CUDA_VISIBLE_DEVICES hides every device")
    devices = nvidia_devices(root, environment=environment)
    if not devices:
        return ProfileChoice("cpu", "no NVIDIA device found")
    return ProfileChoice("gpu", f"{len(devices)} NVIDIA device{'s' if len(devices) > 1 else ''} found")


def nvidia_devices(root: Path = Path("/"), *, environment: Mapping[str, str] = os.environ) -> list[str]:
    """A name for each NVIDIA device of the machine: from the driver's files, else from `nvidia-smi -L`."""
    by_driver = sorted(path.name for path in (root / "proc/driver/nvidia/gpus").glob("*"))
    if by_driver:
        return by_driver
    by_node = sorted(path.name for path in (root / "dev").glob("nvidia[0-9]*"))
    return by_node or _listed_by_nvidia_smi(environment)


def _listed_by_nvidia_smi(environment: Mapping[str, str]) -> list[str]:
    # WSL has neither of the above. The program alone proves nothing: images carry it to machines without a device.
    program = shutil.which("nvidia-smi", path=environment.get("PATH", ""))
    if program is None:
        return []
    try:
        listing = subprocess.run([program, "-L"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in listing.stdout.splitlines() if line.startswith("GPU ")]
