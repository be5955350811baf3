"""Where things lie: the run directory on disk, the shared-memory directory, and the JSON each process is given.

The two directories:

    RUN/
      config/resolved.json                 the whole RunConfig
      config/{trainer,searcher}-I.json     one ProcessConfig per process
      environment.json                     versions, hardware, command line
      run.json                             identity: name, recipe, profile, start, end, outcome
      .reserve                             while it runs: room for its last words on a full disk
      .lock                                locked while it runs: one supervisor at a time
      page.json                            the control page as it was when the run ended
      summary.json                         steps, completions, seconds, evaluations before and after
      logs/attempt_001/{trainer,searcher}-I.log, logs/latest -> attempt_001
      metrics.jsonl                        one line per optimizer step (telemetry/jsonl.py)
      events.jsonl                         what the supervisor saw: starts, deaths, restarts, stops
      evaluations.jsonl                    one EvaluationResult per line
      trajectories.jsonl                   sampled completions
      trace.json                           what each process did when, if asked for (telemetry/trace.py)
      tensorboard/
      checkpoints/step_000010/, checkpoints/latest -> step_000010

    SHM (0700, under /dev/shm, one per run attempt)
      owner.json                           pid and start time of the supervisor: who may be reclaimed
      control                              control page
      ring-I                               searcher I's ring
      weights/policy-v00000010.safetensors and .json (PublishedWeights)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from tbactl.config.sections import RunConfig, Section

SHM_ROOT = Path("/dev/shm")
SHM_PREFIX = "tbactl-"


@dataclass(frozen=True, slots=True)
class RunLayout:
    """Paths inside a run directory."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def resolved_config(self) -> Path:
        return self.config / "resolved.json"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def identity(self) -> Path:
        return self.root / "run.json"

    @property
    def reserve(self) -> Path:
        return self.root / ".reserve"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def summary(self) -> Path:
        return self.root / "summary.json"

    @property
    def final_page(self) -> Path:
        return self.root / "page.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.root / "evaluations.jsonl"

    @property
    def trajectories(self) -> Path:
        return self.root / "trajectories.jsonl"

    @property
    def trace(self) -> Path:
        return self.root / "trace.json"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def latest_checkpoint(self) -> Path:
        return self.checkpoints / "latest"

    def checkpoint(self, step: int) -> Path:
        """Directory of the checkpoint taken after `step` optimizer steps."""
        return self.checkpoints / f"step_{step:06d}"


@dataclass(frozen=True, slots=True)
class CheckpointLayout:
    """Paths inside one checkpoint directory. `manifest` is written last: a directory without it is incomplete."""

    root: Path

    @property
    def manifest(self) -> Path:
        """JSON: step, policy version, files with sizes and checksums."""
        return self.root / "manifest.json"

    @property
    def policy(self) -> Path:
        """The policy in Hugging Face form."""
        return self.root / "policy"

    @property
    def adapter(self) -> Path:
        """The policy's adapters in peft's form, where it is trained by adapters."""
        return self.root / "adapter"

    @property
    def learner(self) -> Path:
        """What `Learner.save` wrote (DeepSpeed's shards)."""
        return self.root / "learner"

    @property
    def replay(self) -> Path:
        """Snapshot of the replay buffer."""
        return self.root / "replay"

    @property
    def trainer_state(self) -> Path:
        """JSON: counters, RNG states, prompt cursor of each searcher."""
        return self.root / "trainer_state.json"


@dataclass(frozen=True, slots=True)
class ShmLayout:
    """Paths inside a run's shared-memory directory."""

    root: Path

    @property
    def owner(self) -> Path:
        return self.root / "owner.json"

    @property
    def control(self) -> Path:
        return self.root / "control"

    def ring(self, searcher: int) -> Path:
        return self.root / f"ring-{searcher}"

    @property
    def weights(self) -> Path:
        return self.root / "weights"


class ProcessConfig(Section):
    """Everything one child process is told: a file, `--config FILE`, and nothing else."""

    role: Literal["trainer", "searcher"]
    index: int = Field(ge=0)
    """Trainer rank or searcher number."""
    run: RunConfig
    run_directory: Path
    shm_directory: Path
    policy_directory: Path
    """`run.policy.path` resolved to a local directory, or the hub name as it is."""
    cores: tuple[int, ...] = ()
    """CPU cores to run on; empty: no restriction."""
    resume_checkpoint: Path | None = None
    """Continue from this checkpoint."""

    @property
    def layout(self) -> RunLayout:
        return RunLayout(self.run_directory)

    @property
    def shm(self) -> ShmLayout:
        return ShmLayout(self.shm_directory)
