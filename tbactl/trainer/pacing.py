"""How much is trained for each trajectory received, kept between two bounds: `replay.{min,max}_samples_per_insert`.

    trained / received     below min                   between      a batch more would exceed max
    ---------------------  --------------------------  -----------  -----------------------------
    intake                 leaves data in the rings    takes it in  takes it in
    the trainer            trains                      trains       waits

Full rings hold the searchers, so neither side runs away from the other. (Reverb's rate limiter, arXiv 2102.04736.)
"""

from __future__ import annotations

from dataclasses import dataclass

from tbactl.checkpoints.trainer_state import TrainerState
from tbactl.config.sections import ReplaySection


@dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """The two bounds, asked about the run's totals. A batch that is drawn but not trained on does not count.

    Attributes:
        state: whose totals count; repeated trajectories and earlier attempts of the run included.
        min_samples_per_insert: below it nothing needs to be taken in; 0 always takes in.
        max_samples_per_insert: no batch may exceed it; None: no bound.
    """

    state: TrainerState
    min_samples_per_insert: float = 0.0
    max_samples_per_insert: float | None = None

    @classmethod
    def of(cls, replay: ReplaySection, *, state: TrainerState) -> Pacing:
        """As the configuration says."""
        return cls(
            state=state,
            min_samples_per_insert=replay.min_samples_per_insert,
            max_samples_per_insert=replay.max_samples_per_insert,
        )

    @property
    def has_caught_up(self) -> bool:
        """Whether what was received has been used often enough to take in more."""
        return self._num_trained >= self.min_samples_per_insert * self._num_received

    def allows(self, num_trajectories: int) -> bool:
        """Whether so many more may be trained on without new data."""
        if self.max_samples_per_insert is None:
            return True
        return self._num_trained + num_trajectories <= self.max_samples_per_insert * self._num_received

    @property
    def samples_per_insert(self) -> float:
        """Trajectories trained on for each one received, so far."""
        return self._num_trained / max(1, self._num_received)

    @property
    def _num_trained(self) -> int:
        return self.state.total("trajectories_trained")

    @property
    def _num_received(self) -> int:
        return self.state.total("trajectories_received")
