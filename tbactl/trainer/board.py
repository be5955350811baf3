"""The trainer's words on the control page, for the supervisor and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.ipc.control_page import NUM_REWARD_BINS, NUM_STALENESS_BINS, Slot, TrainerPhase
from tbactl.replay.buffer import ReplayBuffer
from tbactl.replay.statistics import buffer_statistics

# Control word <- metric of the step.
FROM_METRICS = {
    "f_reward_mean": "objective/reward/mean",
    "f_loss": "objective/loss/mean",
    "f_residual": "objective/residual/rms",
    "f_log_z": "objective/log_z/mean",
    "f_kl": "objective/kl/mean",
    "f_grad_norm": "trainer/grad_norm/value",
    "f_learning_rate": "trainer/learning_rate/value",
    "f_beta": "objective/beta/value",
    "f_completion_tokens": "objective/completion_tokens/mean",
    "f_staleness_p50": "replay/staleness/p50",
    "f_staleness_p95": "replay/staleness/p95",
    "f_samples_per_insert": "replay/samples_per_insert/value",
    "f_step_seconds": "trainer/step_s/sum",
    "f_steps_per_second": "trainer/steps_per_s/mean",
    "f_idle_fraction": "trainer/idle/share",
}


class Board:
    """Writes rank 0's slot."""

    def __init__(self, slot: Slot, *, state: TrainerState, buffer: ReplayBuffer) -> None:
        self._slot = slot
        self._state = state
        self._buffer = buffer

    def enter(self, phase: TrainerPhase) -> None:
        """Show what the trainer is doing."""
        self._slot.set(phase=phase)

    def show_state(self) -> None:
        """Counters, and the make-up of the buffer."""
        state = self._state
        statistics = buffer_statistics(self._buffer, policy_version=state.policy_version)
        staleness = [0] * NUM_STALENESS_BINS
        for age, number in statistics.staleness.items():
            staleness[min(age, NUM_STALENESS_BINS - 1)] += number
        rewards = statistics.reward_counts or (0,) * NUM_REWARD_BINS
        edges = statistics.reward_edges or (0.0, 0.0)
        self._slot.set(
            policy_version=state.policy_version,
            evaluate_version=state.evaluate_version,
            num_groups_received=state.total("groups_received"),
            num_trajectories_received=state.total("trajectories_received"),
            num_trajectories_trained=state.total("trajectories_trained"),
            tokens_trained=state.total("tokens_trained"),
            buffer_trajectories=statistics.num_trajectories,
            buffer_prompts=statistics.num_prompts,
            buffer_capacity=self._buffer.capacity,
            f_reward_low=edges[0],
            f_reward_high=edges[-1],
            **{f"staleness_bin_{i}": number for i, number in enumerate(staleness)},
            **{f"reward_bin_{i}": number for i, number in enumerate(rewards)},
        )

    def show_metrics(self, metrics: Mapping[str, float]) -> None:
        """Numbers of the last step."""
        self._slot.set(**{word: metrics[name] for word, name in FROM_METRICS.items() if name in metrics})

    def show_checkpoint(self, step: int) -> None:
        """A checkpoint of this step is complete."""
        self._slot.set(checkpoint_step=step)

    def show_finished(self) -> None:
        """The last step is done, published and saved."""
        self._slot.set(phase=TrainerPhase.DONE, finished=1)
