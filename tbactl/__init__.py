"""tbactl: asynchronous RL post-training of language models with Trajectory Balance (TBA, arXiv 2503.18929)."""

__version__ = "0.1.0"
