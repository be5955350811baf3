"""Diverse attacks on a victim model, found so that its weaknesses become known: a task for tbactl."""
