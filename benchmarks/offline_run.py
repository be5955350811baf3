"""One run of the real trainer on data that is all there before the first step, for a policy that can be summed up.

The searcher of the run is played: its ring holds a fixed behaviour policy's completions, and what it does with each
published policy is look at the whole distribution. Ring, intake, replay buffer, sampler, trainer loop, DeepSpeed,
publishing and checkpoint are those of `tbactl run`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.enumerable import Space, mean_kl, total_variation
from tbactl.clock import SystemClock
from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.errors import ConfigError, TbactlError
from tbactl.ipc.codec import encode
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState
from tbactl.ipc.ring import RingWriter, create_ring
from tbactl.trainer.learner import DeepSpeedLearner
from tbactl.trainer.session import lead
from tbactl.weight_sync.published import read_description, weights_path

RING_BYTES = 2**26


@dataclass(frozen=True, kw_only=True)
class Variant:
    """An objective with its options."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every objective gets."""

    steps: int = 600
    completions_per_prompt: int = 128
    num_draws: int = 25_000
    """Completions of each prompt in the data; their repetitions are dropped by the buffer."""
    look_period: int = 20
    """Optimizer steps between two looks at the policy."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run. Numbers are means over prompts and, but for the curve, those of the last policy."""

    objective: str
    learning_rate: float
    steps: list[int]
    total_variation: list[float]
    """To the target, after each of `steps`."""
    worst_prompt: float
    """Total variation of the prompt where it is largest."""
    reward: float
    """Expected reward."""
    kl: float
    """KL(policy || reference) of a completion, in nats."""
    is_diverged: bool
    """Ended early, because log-probs or gradients were no longer finite."""
    seconds: float
    logprobs: list[list[float]]
    """Of all strings, for each prompt."""

    @property
    def distance(self) -> float:
        """Total variation at the end."""
        return self.total_variation[-1]


class Onlooker:
    """In the trainer's place for a pulse, and a searcher that generates nothing: reads each published policy."""

    def __init__(
        self, config: ProcessConfig, *, page: ControlPage, look: Callable[[int, LlamaForCausalLM], None]
    ) -> None:
        self._weights = config.shm.weights
        self._trainer = page.trainer()
        self._searcher = page.searcher(0)
        self._policy = LlamaForCausalLM.from_pretrained(config.policy_directory)
        self._look = look
        look(0, self._policy)

    def start(self) -> None:
        """Nothing beats here."""

    def stop(self) -> None:
        """Nothing beats here."""

    def enter(self, state: ProcessState) -> None:
        """A sign of progress as any other."""
        self.progress()

    def progress(self) -> None:
        """Load what is new."""
        self._searcher.add(progress_count=1)
        version = self._trainer.get("published_version")
        if version > self._searcher.get("loaded_version"):
            published = read_description(self._weights, version)
            assert published is not None, "nothing newer can be there while the trainer waits for us"
            self._policy.load_state_dict(load_file(weights_path(self._weights, version)))
            self._searcher.set(fingerprint=int(published.fingerprint[:16], 16), loaded_version=version)
            self._look(version, self._policy)


def train(
    space: Space,
    variant: Variant,
    *,
    learning_rate: float,
    budget: Budget,
    policy: Path,
    say: Callable[[str], object],
) -> Outcome:
    """Train `policy` on uniform data; a process group must exist. `say` gets a line at each look.

    Raises:
        ConfigError: the objective is unknown, or refuses its options.
    """
    start_s = time.monotonic()
    reference = space.logprobs(LlamaForCausalLM.from_pretrained(policy))
    target = space.target_logprobs(reference)
    looks: list[tuple[int, Tensor]] = []

    def look(version: int, model: LlamaForCausalLM) -> None:
        looks.append((version, space.logprobs(model)))
        say(f"step {version:>5}   total variation {total_variation(looks[-1][1], target).mean():.4f}")

    is_diverged = False
    with TemporaryDirectory() as root:
        config = _config(Path(root), space, variant, learning_rate=learning_rate, budget=budget, policy=policy)
        page = _prepare(config, space, budget=budget)
        onlooker = Onlooker(config, page=page, look=look)
        learner = DeepSpeedLearner(config)
        try:
            lead(config, learner=learner, page=page, pulse=onlooker, clock=SystemClock())  # type: ignore[arg-type]
        except ConfigError:
            raise
        except TbactlError as error:
            say(str(error))
            is_diverged = True
        finally:
            learner.close()
    logprobs = looks[-1][1]
    return Outcome(
        objective=variant.name,
        learning_rate=learning_rate,
        steps=[step for step, _ in looks],
        total_variation=[float(total_variation(seen, target).mean()) for _, seen in looks],
        worst_prompt=float(total_variation(logprobs, target).max()),
        reward=space.expected_reward(logprobs),
        kl=mean_kl(logprobs, reference),
        is_diverged=is_diverged,
        seconds=time.monotonic() - start_s,
        logprobs=logprobs.tolist(),
    )


def _config(
    root: Path, space: Space, variant: Variant, *, learning_rate: float, budget: Budget, policy: Path
) -> ProcessConfig:
    num_trajectories = budget.num_draws * space.num_prompts
    run = RunConfig.model_validate(
        {
            "name": "theorem",
            "seed": space.seed,
            "task": {"kind": "fake"},
            "policy": {"path": str(policy)},
            "searchers": {"temperature": space.temperature, "max_new_tokens": space.max_length},
            "objective": {"kind": variant.kind, "options": dict(variant.options), "beta": space.beta},
            "replay": {
                "capacity": num_trajectories,
                "capacity_per_prompt": num_trajectories,
                "initial_trajectories": num_trajectories,
                "on_policy_fraction": 0.0,
            },
            "trainer": {
                "zero_stage": 0,
                "adam_betas": (0.9, 0.98),
                "max_steps": budget.steps,
                "prompts_per_step": space.num_prompts,
                "completions_per_prompt": budget.completions_per_prompt,
                "learning_rate": learning_rate,
                "lr_schedule": "cosine",
                "warmup_steps": budget.steps // 20,
                "logprob_chunk_tokens": 2**16,
                "micro_batch_tokens": 2**16,
            },
            "sync": {"period": budget.look_period, "probe_sequences": 0},
            "checkpoint": {"period": 0},
            "logging": {"tensorboard": False, "trajectories_per_step": 0},
        }
    )
    return ProcessConfig(
        role="trainer",
        index=0,
        run=run,
        run_directory=root / "run",
        shm_directory=root / "shm",
        policy_directory=policy,
    )


def _prepare(config: ProcessConfig, space: Space, *, budget: Budget) -> ControlPage:
    """The supervisor's and the searcher's part: a run that has begun, and a ring with all of its data."""
    config.shm.root.mkdir(parents=True)
    page = ControlPage.create(config.shm.control, num_trainer_ranks=1, num_searchers=1)
    create_ring(config.shm.ring(0), capacity_bytes=RING_BYTES)
    with RingWriter.open(config.shm.ring(0)) as ring:
        for group in space.uniform_data(num_draws=budget.num_draws):
            assert ring.try_write(encode(group)), "the ring holds all data"
    page.searcher(0).set(state=ProcessState.RUNNING)
    page.supervisor.set(run_state=RunState.RUNNING)
    return page
