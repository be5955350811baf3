"""Evaluates a policy: by its task, or by lm-eval over our engine."""
