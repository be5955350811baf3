"""One rank of a `DeepSpeedLearner` in a process of its own: CONFIG.json OUTPUT NUM_STEPS.

Rank 0 does the steps on random groups, exports, saves, aborts a step, and writes what it measured.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from tbactl.config.layout import ProcessConfig
from tbactl.protocols import ProbeBatch
from tbactl.trainer.learner import DeepSpeedLearner
from tests.support.trainer_groups import make_groups

PROBE = ProbeBatch(sequences=(((5, 6, 7, 8, 9), 2), ((1, 2), 1)))


def main() -> None:
    torch.set_num_threads(1)
    config = ProcessConfig.model_validate_json(Path(sys.argv[1]).read_bytes())
    output = Path(sys.argv[2])
    learner = DeepSpeedLearner(config)
    if config.index > 0:
        learner.serve(while_waiting=lambda: None)
    else:
        reports = [
            # Five groups for two ranks: one has more micro-batches than the other.
            learner.update(make_groups(5, seed=seed), beta=0.1, should_abort=lambda: False)
            for seed in range(int(sys.argv[3]))
        ]
        aborted = learner.update(make_groups(5, seed=99), beta=0.1, should_abort=lambda: True)
        learner.export_policy(output / "export")
        learner.save(output / "learner")
        learner.write_weights(output / "weights.safetensors")
        probe = learner.probe_logprobs(PROBE)
        result = {
            "metrics": [report.metrics for report in reports],
            "residuals": [list(report.residuals.items()) for report in reports],
            "aborted": aborted,
            "probe": probe,
        }
        (output / "result.json").write_text(json.dumps(result))
    learner.close()


if __name__ == "__main__":
    main()
