"""Checkpoints on disk: written as one transaction, verified when read, and read for their policy alone."""
