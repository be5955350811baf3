"""From a task's name and options to the task: the one place that knows how a task is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tbactl import registry
from tbactl.errors import ConfigError
from tbactl.protocols import Task

GROUP = "tbactl.tasks"
POLICY_PREFIX = "task:"


def build_task(kind: str, options: Mapping[str, Any]) -> Task:
    """An installed task with its options, which are its constructor's keyword arguments.

    Raises:
        ConfigError: the task is unknown, or refuses an option.
    """
    task_class = registry.load(GROUP, kind)
    try:
        return task_class(**options)
    except TypeError as error:
        # Python's own refusal of a keyword, where a task leaves it at that.
        raise ConfigError(f"task '{kind}' refuses its options: {error}.") from None


def shipped_policy(kind: str, policy: str) -> Path:
    """Directory of `task:NAME`, a policy that the package of task `kind` ships, or `task:TASK/NAME`, of another task.

    Raises:
        ConfigError: the task ships no policy, or none of that name.
    """
    owner, _, name = policy.removeprefix(POLICY_PREFIX).rpartition("/")
    find = getattr(registry.load(GROUP, owner or kind), "policy_path", None)
    if find is None:
        raise ConfigError(
            f"policy.path = '{policy}': the task '{owner or kind}' ships no policy; give a directory, a hub name, or "
            f"another task's, as task:TASK/NAME."
        )
    return Path(find(name))
