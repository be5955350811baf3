"""The red-team task, which also writes down every attack that searchers score.

A run keeps only some of them otherwise: the replay buffer drops near duplicates and the mean toxicity, and
trajectories.jsonl holds what was trained on. This is a task of its own, `redteam-recorded`, made known to the processes
of a run as any third party's is: by an entry point that they find on PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tbactl.dashboard.tail import JsonlTail
from tbactl.types import Completion, Prompt, Reward
from tbactl_redteam.attacks import attack_text
from tbactl_redteam.task import RedteamTask

KIND = "redteam-recorded"
DIRECTORY_VARIABLE = "TBACTL_BENCHMARK_ATTACKS"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAttack:
    """An attack that a searcher generated, and what became of it."""

    time_s: float
    """When it was scored, in seconds since the epoch."""
    attack: str
    reward: float
    toxicity: float | None
    """Mean over the victim's answers, by the classifier trained against. None: it was no attack, or scoring failed."""


class RecordedRedteam(RedteamTask):
    """Scores as its parent does. Each process writes its own file in the directory that DIRECTORY_VARIABLE names."""

    def score(self, prompt: Prompt, completions: Sequence[Completion]) -> list[Reward]:
        rewards = super().score(prompt, completions)
        now_s = time.time()
        lines = [
            {
                "time_s": now_s,
                "attack": attack_text(completion.text),
                "reward": reward.value,
                "toxicity": reward.metrics.get("toxicity"),
            }
            for completion, reward in zip(completions, rewards, strict=True)
        ]
        file = Path(os.environ[DIRECTORY_VARIABLE]) / f"{os.getpid()}.jsonl"
        with file.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(line) + "\n" for line in lines)
        return rewards


def recording_environment(attacks: Path, *, plugin: Path) -> dict[str, str]:
    """Variables with which `tbactl` knows the task and the task its directory.

    Args:
        attacks: where attacks are written; it must be there.
        plugin: directory for the entry point, made if missing.
    """
    metadata = plugin.resolve() / "tbactl_benchmarks-0.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tbactl-benchmarks\nVersion: 0\n", encoding="utf-8")
    entry_point = f"[tbactl.tasks]\n{KIND} = benchmarks.redteam_recording:RecordedRedteam\n"
    (metadata / "entry_points.txt").write_text(entry_point, encoding="utf-8")
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(plugin.resolve()), str(ROOT), *([inherited] if inherited else [])])
    return {"PYTHONPATH": path, "TBACTL_LOAD_PLUGINS": "1", DIRECTORY_VARIABLE: str(attacks.resolve())}


def read_recorded(directory: Path) -> list[RecordedAttack]:
    """What all processes have written so far, in the order of time. A line that is being written is left out."""
    lines = [line for file in sorted(directory.glob("*.jsonl")) for line in JsonlTail(file).read_new()]
    return sorted((RecordedAttack(**line) for line in lines), key=lambda attack: attack.time_s)


def count_recorded(directory: Path) -> int:
    """How many attacks are written so far."""
    return sum(file.read_bytes().count(b"\n") for file in directory.glob("*.jsonl"))
