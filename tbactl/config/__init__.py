"""Settings: sections, recipes, validation, and where a run keeps its files."""
