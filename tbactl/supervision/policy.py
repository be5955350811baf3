"""Where the initial policy lies, and how large its published weights will be, found without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tbactl.config.sections import PolicySection, RunConfig
from tbactl.config.tasks import POLICY_PREFIX, shipped_policy
from tbactl.policies.packaged import PACKAGE_PREFIX, packaged_policy
from tbactl.policies.weights_header import tensor_shapes

BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2}


def resolve_policy(config: RunConfig) -> Path:
    """`policy.path` as a local directory, or the hub name as it is.

    Raises:
        ConfigError: `task:NAME` names a policy that the task does not ship, or `package:NAME` one that cannot be had.
    """
    path = config.policy.path
    if path.startswith(PACKAGE_PREFIX):
        return packaged_policy(path)
    if not path.startswith(POLICY_PREFIX):
        directory = Path(path).expanduser()
        return directory.resolve() if directory.is_dir() else Path(path)
    return shipped_policy(config.task.kind, path)


def published_bytes(policy: PolicySection, *, directory: Path) -> int:
    """Size of one version of the weights as searchers get it: every parameter in `policy.dtype`, tied ones twice.

    0 for a hub name that is not a local directory: its size is not known before it is loaded.
    """
    shapes: dict[str, list[int]] = {}
    for file in sorted(directory.glob("*.safetensors")) if directory.is_dir() else ():
        shapes |= tensor_shapes(file)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    if shapes and "lm_head.weight" not in shapes:
        settings = _settings(directory)
        parameters += int(settings.get("vocab_size", 0)) * int(settings.get("hidden_size", 0))
    return parameters * BYTES_PER_PARAMETER[policy.dtype]


def _settings(directory: Path) -> dict[str, Any]:
    try:
        return json.loads((directory / "config.json").read_bytes())
    except FileNotFoundError:
        return {}
