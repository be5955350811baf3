"""A whole run in one thread: the real trainer loop, rings and files; supervisor and searchers are played by a script.

Time stands still but where the trainer waits; every sign of progress that the trainer gives lets the searchers act. So
a run is deterministic in both modes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tbactl.clock import FakeClock
from tbactl.config.layout import ProcessConfig
from tbactl.ipc.codec import encode
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState
from tbactl.ipc.ring import RingWriter, create_ring
from tbactl.protocols import Learner
from tbactl.testing.fake_learner import FakeLearner
from tbactl.testing.fake_policy import EOS, VOCABULARY, FakePolicy
from tbactl.trainer.session import lead
from tbactl.types import Completion, Trajectory, TrajectoryGroup
from tbactl.weight_sync.published import published_versions, read_description, weights_path
from tests.support.trainer_groups import make_config

SETTINGS: dict[str, Any] = {
    "policy": {"path": "none"},
    "searchers": {"num_searchers": 2, "engine": "fake", "num_completions": 4, "max_new_tokens": 8},
    "replay": {"initial_trajectories": 32, "capacity": 400},
    "trainer": {"kind": "fake", "max_steps": 6, "prompts_per_step": 4, "completions_per_prompt": 4},
    "sync": {"period": 2},
    "checkpoint": {"period": 2, "keep_last": 10},
    "logging": {"tensorboard": False, "trajectories_per_step": 2},
    "supervision": {"progress_timeout_s": 30.0},
}
SYNC_MODE: dict[str, Any] = {"mode": "sync", "sync": {"period": 1}, "replay": {"on_policy_fraction": 1.0}}


class ScriptedSearcher:
    """Loads weights at once and writes a group whenever it may; everything follows from seed and prompt number."""

    def __init__(self, config: ProcessConfig, page: ControlPage, *, index: int, position: int) -> None:
        self._run = config.run
        self._weights = config.shm.weights
        self._slot = page.searcher(index)
        self._trainer = page.trainer()
        self._ring = RingWriter.open(config.shm.ring(index))
        self._index = index
        self._stride = config.run.searchers.num_searchers
        self.position = position + (index - position) % self._stride
        self.policy = FakePolicy.initial(Path("/nowhere"))
        self.is_silent = False
        self.takes_weights = True
        self.reads_weights = True  # else it only says so: for learners of other models
        self._slot.set(state=ProcessState.RUNNING, stream_position=self.position)

    def act(self) -> None:
        """One turn."""
        if self.is_silent:
            return
        self._slot.add(heartbeat_ns=1)
        published = self._trainer.get("published_version")
        if self.takes_weights and published > self._slot.get("loaded_version"):
            assert published in published_versions(self._weights)
            if self.reads_weights:
                self.policy = FakePolicy.load(weights_path(self._weights, published))
            description = read_description(self._weights, published)
            assert description is not None
            self._slot.set(fingerprint=int(description.fingerprint[:16], 16), loaded_version=published)
        if self._run.mode == "sync" and (
            self._slot.get("loaded_version") < published or self.position >= self._trainer.get("granted_groups")
        ):
            return
        if self._ring.try_write(encode(self._group())):
            self.position += self._stride

    def _group(self) -> TrajectoryGroup:
        rng = np.random.default_rng([self._run.seed, self.position])
        version = self._slot.get("loaded_version")
        probabilities = np.exp(self.policy.log_probabilities(temperature=self._run.searchers.temperature))
        trajectories = []
        for number in range(self._run.searchers.num_completions):
            ids = rng.choice(VOCABULARY, size=self._run.searchers.max_new_tokens, p=probabilities).tolist()
            if EOS in ids:
                ids = ids[: ids.index(EOS) + 1]
            completion = Completion(
                token_ids=tuple(ids),
                logprobs=tuple(float(np.log(probabilities[token])) for token in ids),
                text="x" * len(ids),
                finish_reason="stop" if ids[-1] == EOS else "length",
                first_version=version,
                last_version=version,
            )
            uid = (self._index << 48) + self.position * 100 + number
            trajectories.append(
                Trajectory(uid=uid, completion=completion, reward=float(np.mean([i == 1 for i in ids])))
            )
        return TrajectoryGroup(
            prompt_id=self.position,
            prompt_text=f"prompt {self.position}",
            prompt_token_ids=(1 + self.position % 26, 2),
            trajectories=tuple(trajectories),
            searcher=self._index,
            sequence_number=self.position,
            stream_position=self.position + self._stride,
        )

    def close(self) -> None:
        """Let go of the ring."""
        self._ring.close()


class ScriptedPulse:
    """Stands for the trainer's pulse: each sign of progress is a turn of everybody else."""

    def __init__(self, script: ScriptedRun) -> None:
        self._script = script
        self.states: list[ProcessState] = []

    def start(self) -> None:
        """Nothing beats here."""

    def enter(self, state: ProcessState) -> None:
        self.states.append(state)
        self.progress()

    def progress(self) -> None:
        self._script.turn()

    def stop(self) -> None:
        """Nothing beats here."""


class ScriptedRun:
    """Builds rings, page and searchers under `root`, then drives `lead` to its end."""

    def __init__(
        self,
        root: Path,
        *,
        resume: Path | None = None,
        policy_directory: Path | None = None,
        learner: Callable[[ProcessConfig], Learner] = FakeLearner,
        **settings: Any,
    ) -> None:
        merged = {name: dict(value) if isinstance(value, dict) else value for name, value in SETTINGS.items()}
        for name, value in settings.items():
            merged[name] = merged.get(name, {}) | value if isinstance(value, dict) else value
        self.config = make_config(root, policy_directory=policy_directory, **merged).model_copy(
            update={"resume_checkpoint": resume}
        )
        shm = self.config.shm
        num_searchers = self.config.run.searchers.num_searchers
        shm.root.mkdir(parents=True)
        self.page = ControlPage.create(shm.control, num_trainer_ranks=1, num_searchers=num_searchers)
        positions = [0] * num_searchers if resume is None else trainer_state(resume)["stream_positions"]
        for index in range(num_searchers):
            create_ring(shm.ring(index), capacity_bytes=100_000)
        self.searchers = [
            ScriptedSearcher(self.config, self.page, index=index, position=position)
            for index, position in enumerate(positions)
        ]
        self.page.supervisor.set(run_state=RunState.RUNNING)
        self.clock = FakeClock()
        self.pulse = ScriptedPulse(self)
        self.on_turn: Callable[[], None] = lambda: None
        self.learner = learner(self.config)

    def turn(self) -> None:
        """Everybody else acts."""
        self.on_turn()
        for searcher in self.searchers:
            searcher.act()

    def run(self) -> None:
        """Train to the end."""
        try:
            lead(self.config, learner=self.learner, page=self.page, pulse=self.pulse, clock=self.clock)  # type: ignore[arg-type]
        finally:
            for searcher in self.searchers:
                searcher.close()

    @property
    def word(self) -> Callable[[str], int]:
        """Words of the trainer's slot."""
        return self.page.trainer().get

    def ask(self, state: RunState, *, at_version: int) -> None:
        """Have the supervisor ask for a run state once a policy version is reached."""

        def look() -> None:
            if self.word("policy_version") >= at_version:
                self.page.supervisor.set(run_state=state)

        self.on_turn = look

    def metrics(self) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl."""
        return [json.loads(line) for line in self.config.layout.metrics.read_text().splitlines()]

    def checkpoint(self, step: int) -> Path:
        """A checkpoint's directory."""
        return self.config.layout.checkpoint(step)


def trainer_state(checkpoint: Path) -> dict[str, Any]:
    """trainer_state.json."""
    return json.loads((checkpoint / "trainer_state.json").read_bytes())
