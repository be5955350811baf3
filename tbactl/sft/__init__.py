"""Supervised training of a policy on a task's own solutions, from scratch or from an existing policy."""
