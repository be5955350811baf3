"""Summaries in one line, judged by a reward model: a task for tbactl."""
