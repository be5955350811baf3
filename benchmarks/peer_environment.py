"""Environments of their own for peers that a benchmark compares with and the project does not depend on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.measuring import ROOT, console


def peer_python(name: str, *, size: str) -> Path | None:
    """The interpreter of `.venv-NAME`, which is made of benchmarks/requirements-NAME.txt when it is missing.

    None, with a line that says so, where it cannot be made, as without a connection to a package index: that peer is
    left out.

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
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", str(requirements)]
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
            subprocess.run(pip, check=True)
        except subprocess.CalledProcessError as error:
            console.print(
                f"{name} is left out: {environment.name} could not be made (exit code {error.returncode} of "
                f"`python {' '.join(error.cmd[1:4])}`, see above); --no-peer does not try"
            )
            return None
        complete.touch()
    return python
