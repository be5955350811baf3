"""All ranks of a `DeepSpeedLearner`, each in a process of its own, running a script of tests/support."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.trainer_groups import make_config


def run_ranks(
    root: Path,
    policy: Path,
    *,
    num_ranks: int,
    arguments: tuple[str, ...],
    script: str = "learner_rank",
    trainer: dict[str, Any],
    **settings: Any,
) -> None:
    """Run `script CONFIG.json ROOT *ARGUMENTS` for each rank to its end, all at once.

    Args:
        root: for configurations and output; is created.
        policy: directory of the initial policy.
        num_ranks: processes.
        arguments: of the script, after its configuration and `root`.
        script: module in tests/support.
        trainer: settings of that section.
        settings: other sections.
    """
    (root / "shm").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("MASTER_PORT", "MASTER_ADDR")}
    environment |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in range(num_ranks):
        sizes = {"num_ranks": num_ranks, "prompts_per_step": 4 * num_ranks}
        config = make_config(root, policy_directory=policy, index=rank, trainer=sizes | trainer, **settings)
        path = root / f"rank-{rank}.json"
        path.write_text(config.model_dump_json())
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", f"tests.support.{script}", str(path), str(root), *arguments],
                env=environment | {"LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    for process in processes:
        output, _ = process.communicate(timeout=800)
        assert process.returncode == 0, output[-3000:]
