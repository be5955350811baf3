"""From a task's name and options to the task: the one place that knows how a task is built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tbactl import registry
from tbactl.errors import ConfigError, TaskError, TbactlError
from tbactl.protocols import Task

GROUP = "tbactl.tasks"
MEMBERS = ("name", "prompts", "score", "evaluation_prompts", "evaluate", "self_check", "close")
POLICY_PREFIX = "task:"


def build_task(kind: str, options: Mapping[str, Any]) -> Task:
    """An installed task with its options, which are its constructor's keyword arguments.

    Raises:
        ConfigError: the task is unknown, or refuses an option.
        TaskError: it cannot be made, or is no task.
    """
    task_class = registry.load(GROUP, kind)
    try:
        task = task_class(**options)
    except TypeError as error:
        # Python's own refusal of a keyword, where a task leaves it at that.
        raise ConfigError(f"task '{kind}' refuses its options: {error}.") from None
    except TbactlError:
        raise
    except Exception as error:
        raise TaskError(f"task '{kind}' cannot be made: {type(error).__name__}: {error}.") from error
    missing = [member for member in MEMBERS if not hasattr(task, member)]
    if missing:
        raise TaskError(f"'{kind}' is no task: it lacks {', '.join(missing)} (docs/writing-a-task.md).")
    return task


def reward_metrics(kind: str) -> tuple[str, ...]:
    """Names of what a task's rewards say besides their value and what a run therefore shows, in their order."""
    return tuple(getattr(registry.load(GROUP, kind), "reward_metrics", ()))


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
