"""A process that explores: prompts in, trajectory groups out. `loop.py` tells how its parts meet."""
