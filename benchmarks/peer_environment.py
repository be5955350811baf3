"""Environments of their own for peers that a benchmark compares with and the project does not depend on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import ROOT, console


def peer_python(name: str, *, size: str) -> Path:
    """The interpreter of `.venv-NAME`, which is made of benchmarks/requirements-NAME.txt when it is missing.

    Args:
        name: of the peer.
        size: what will be downloaded, for the reader.
    """
    environment = ROOT / f".venv-{name}"
    requirements = ROOT / "benchmarks" / f"requirements-{name}.txt"
    python = environment / "bin" / "python"
    complete = environment / "complete"
    if not complete.exists():
        console.print(f"making {environment.name} of {requirements.name}: {size}, once")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(requirements)]
        subprocess.run(pip, check=True)
        complete.touch()
    return python
