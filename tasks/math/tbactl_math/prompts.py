"""The prompt of the paper's math experiments."""

from __future__ import annotations

# Trajectory Balance with Asynchrony (arXiv 2503.18929), GSM8K set-up. The completion starts on its own line.
PROMPT_TEMPLATE = "[MATH TASK] Problem:\n{question}\n\nSolution:\n"


def format_prompt(question: str) -> str:
    """The text a policy is asked to continue for `question`, which may hold braces (LaTeX)."""
    return PROMPT_TEMPLATE.replace("{question}", question.strip())
