"""What a task's own options and the settings of its run must satisfy together."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tbactl.config.problems import Problem, setting_problem
from tbactl.config.sections import RunConfig
from tbactl.config.tasks import build_task
from tbactl.errors import TbactlError


def rewards_return_in_time(config: RunConfig) -> Iterator[Problem]:
    """A task that bounds its reward does so below the limit at which the searcher gives the reward up."""
    try:
        task = build_task(config.task.kind, config.task.options)
    except TbactlError:  # what is wrong with the task or its options is said where they are checked
        return
    num_completions, limit_s = config.searchers.num_completions, config.supervision.progress_timeout_s
    try:
        bound: Callable[[int], tuple[float, str] | None] | None = getattr(task, "longest_score", None)
        longest = None if bound is None else bound(num_completions)
    finally:
        task.close()
    if longest is not None and longest[0] >= limit_s:
        yield setting_problem(
            config,
            "supervision.progress_timeout_s",
            f"must be more than {longest[0]:g}: so long may the reward of one group of {num_completions} completions "
            f"take ({longest[1]}); raise it, or lower those limits.",
        )
