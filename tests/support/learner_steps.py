"""Two optimizer steps of a `DeepSpeedLearner` with any number of ranks, each in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from tests.support.rank_processes import run_ranks


def two_steps(
    root: Path, policy: Path, *, num_ranks: int, zero_stage: int, **sections: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What rank 0 measured (see `learner_rank.py`), and the exported weights. `sections` are others of RunConfig."""
    trainer = {"zero_stage": zero_stage, "micro_batch_tokens": 80, "learning_rate": 1e-4}
    run_ranks(root, policy, num_ranks=num_ranks, arguments=("2",), trainer=trainer, **sections)
    return json.loads((root / "result.json").read_text()), load_file(root / "export" / "model.safetensors")
