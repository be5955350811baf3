"""Engines: what turns prompts into completions. Searchers and evaluations drive them through `protocols.Engine`."""
