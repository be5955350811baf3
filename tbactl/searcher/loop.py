"""The searcher's loop: where prompts, engine, reward, ring and new weights meet.

    prompt stream --take--> engine --finished--> scorer (a thread) --scored--> outbox --record--> ring --> trainer
                              ^                                                  |
        subscriber --weights--+         evaluator borrows the engine             +--> cursor: where to resume

| part of a turn | waits for | unblocked by |
|---|---|---|
| take weights | nothing | - |
| evaluate | the engine, up to evaluation_timeout_s | the run's end |
| start groups | all ready; places for all of it; a ring that is not full; mode sync: a grant | trainer reads, grants |
| step the engine | one decode step; `EngineWatch` ends one that finishes nothing | - |
| deliver | nothing: what does not fit stays in the outbox | trainer reads |

Between two turns without work the loop sleeps a few milliseconds. In mode sync everything that decides which request
runs when depends on prompts, grants and versions only, never on time: equal seeds give equal bits. A group then takes
the place of a whole one; in mode async that of as many completions, of whichever groups, as it has itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tbactl.clock import Clock
from tbactl.config.derived import most_open_groups
from tbactl.config.layout import ProcessConfig
from tbactl.engines.generate import request_seed
from tbactl.errors import TbactlError
from tbactl.ipc.child import Pulse
from tbactl.ipc.control_page import ControlPage, ProcessState, RunState
from tbactl.ipc.ring import RingWriter
from tbactl.objectives.schedules import sampling_temperature_at
from tbactl.protocols import Engine, FinishedRequest, GenerationRequest
from tbactl.searcher.delivery import Outbox
from tbactl.searcher.engine_watch import EngineWatch
from tbactl.searcher.evaluation import EvaluationAbortedError, Evaluator
from tbactl.searcher.prompt_stream import PromptStream, StreamedPrompt
from tbactl.searcher.scoring import GeneratedGroup, Scorer
from tbactl.searcher.status import Status
from tbactl.telemetry.trace import Activities, Trace, measured
from tbactl.types import Completion, SamplingParams
from tbactl.weight_sync.subscriber import Subscriber

logger = logging.getLogger(__name__)

IDLE_S = 0.01
DRAIN_S = 5.0


@dataclass(slots=True)
class _OpenGroup:
    """A prompt whose completions are being generated."""

    streamed: StreamedPrompt
    num_requests: int
    num_open: int
    completions: dict[int, Completion] = field(default_factory=dict)  # by number, whatever order they finish in

    @property
    def generated(self) -> GeneratedGroup:
        """What came of it."""
        numbers = sorted(self.completions)
        return GeneratedGroup(
            streamed=self.streamed,
            completions=tuple(self.completions[number] for number in numbers),
            num_failed=self.num_requests - len(numbers),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearcherParts:
    """What the loop drives."""

    engine: Engine
    stream: PromptStream
    scorer: Scorer
    outbox: Outbox
    ring: RingWriter
    subscriber: Subscriber
    evaluator: Evaluator
    status: Status
    trace: Trace


class Searcher:
    """Runs until the supervisor says STOPPING.

    Args:
        config: of this process.
        parts: built by `run.py`.
        page: the control page.
        pulse: told of every turn.
        must_load: do not start before the trainer has published weights: a resumed run.
        clock: for waits.
    """

    def __init__(
        self,
        config: ProcessConfig,
        parts: SearcherParts,
        *,
        page: ControlPage,
        pulse: Pulse,
        must_load: bool,
        clock: Clock,
    ) -> None:
        self._settings = config.run.searchers
        self._seed = config.run.seed
        self._is_sync = config.run.mode == "sync"
        self._most_open = most_open_groups(config.run)
        self._parts = parts
        self._supervisor = page.supervisor
        self._trainer = page.trainer()
        self._slot = page.searcher(config.index)
        self._pulse = pulse
        self._must_load = must_load
        self._clock = clock
        self._open: dict[int, _OpenGroup] = {}  # by position
        self._requests: dict[str, tuple[int, int]] = {}  # id -> position, number
        self._watch = EngineWatch(
            clock=clock,
            limit_s=config.run.supervision.progress_timeout_s,
            max_tokens=self._settings.max_prompt_tokens + self._settings.max_new_tokens,
        )
        self._activities = Activities(parts.trace)

    def run(self) -> None:
        """Explore, then drain, then wait for the end.

        Raises:
            TbactlError: the engine refuses new weights, or the task breaks its contract.
        """
        self._pulse.enter(ProcessState.RUNNING)
        while self._run_state < RunState.RUNNING:
            self._turn_or_rest()
        self._parts.status.begin()
        while self._run_state == RunState.RUNNING:
            self._turn_or_rest()
        if self._run_state == RunState.DRAINING:
            self._pulse.enter(ProcessState.DRAINING)
            self._drain()
        self._activities.end()
        while self._run_state != RunState.STOPPING:
            self._pulse.progress()
            self._clock.sleep(IDLE_S)

    def _turn_or_rest(self) -> None:
        start_s = self._clock.monotonic_s()
        has_worked = self.turn()
        end_s = self._clock.monotonic_s()
        self._activities.note("turns" if has_worked else "idle", start_s=start_s, end_s=end_s)
        if not has_worked:
            self._clock.sleep(IDLE_S)
            idle_s = self._clock.monotonic_s() - end_s
            self._activities.note("idle", start_s=end_s, end_s=end_s + idle_s)
            self._parts.status.note_idle(idle_s)

    def turn(self) -> bool:
        """One turn; returns whether it did anything."""
        self._pulse.progress()
        self._parts.status.note_turn()
        asked_version = self._parts.evaluator.asked_version
        # Newer weights wait for the evaluation of those it holds: a new engine's are version 0, published nowhere.
        has_worked = not self._holds(asked_version) and self._take_weights(wanted=asked_version)
        if asked_version is not None and self._holds(asked_version):
            with measured(self._parts.trace, "evaluate"):
                self._parts.evaluator.evaluate(asked_version, on_other=self._sort_in, on_step=self._beside_evaluation)
            self._watch.begin()
            return True
        while self._may_start():
            self._start_group()
            has_worked = True
        has_worked = self._step_engine() or has_worked
        return self._deliver() or has_worked

    @property
    def _run_state(self) -> RunState:
        return RunState(self._supervisor.get("run_state"))

    def _holds(self, version: int | None) -> bool:
        return version is not None and not self._must_load and self._parts.engine.policy_version >= version

    def _take_weights(self, *, wanted: int | None) -> bool:
        """Load newer weights if there are any: the wanted version where it is still published, else the newest."""
        loaded = self._parts.engine.policy_version
        if self._trainer.get("published_version") <= loaded:
            return False
        published = self._parts.subscriber.newest()
        if wanted is not None and wanted > loaded:
            published = self._parts.subscriber.find(wanted) or published
        if published is None or published.version <= loaded:
            return False
        with measured(self._parts.trace, "load_weights"):
            report = self._parts.subscriber.load(published, engine=self._parts.engine)
        if report is None:
            return False
        self._must_load = False
        self._parts.status.note_sync(report)
        return True

    def _may_start(self) -> bool:
        # Before RUNNING others are still loading: what is generated then would cost no training time.
        if self._run_state != RunState.RUNNING or self._must_load or self._trainer.get("finished"):
            return False
        if not self._has_room():
            return False
        if self._is_sync:
            is_current = self._parts.engine.policy_version == self._trainer.get("published_version")
            return is_current and self._parts.stream.next_position < self._trainer.get("granted_groups")
        backlog = self._parts.scorer.num_pending + self._parts.outbox.num_waiting
        return backlog < self._settings.max_concurrent_groups

    def _has_room(self) -> bool:
        if len(self._open) >= self._most_open:
            return False
        # By completions, not by groups: else the last one of a group would keep the places of all its others empty.
        num_completions = self._settings.num_completions
        num_places = self._settings.max_concurrent_groups * num_completions
        return self._is_sync or len(self._requests) + num_completions <= num_places

    def _start_group(self) -> None:
        streamed = self._parts.stream.take()
        num_completions = self._settings.num_completions
        self._open[streamed.position] = _OpenGroup(
            streamed=streamed, num_requests=num_completions, num_open=num_completions
        )
        self._slot.add(num_prompts_started=1)
        self._slot.set(num_skipped_prompts=self._parts.stream.num_skipped)
        sampling = self._sampling()
        for k in range(num_completions):
            name = f"{streamed.position}-{k}"
            self._requests[name] = (streamed.position, k)
            self._parts.engine.submit(
                GenerationRequest(
                    request_id=name,
                    prompt_token_ids=streamed.token_ids,
                    sampling=sampling,
                    seed=request_seed(self._seed, streamed.position, k) if self._is_sync else None,
                )
            )

    def _step_engine(self) -> bool:
        # Also where the engine says that it has nothing left, and has not answered all: that must not go on for ever.
        if not self._requests and not self._parts.engine.num_unfinished:
            self._watch.begin()
            return False
        finished = self._parts.engine.step()
        for request in finished:
            self._sort_in(request)
        num_open = len(self._requests) or self._parts.engine.num_unfinished
        self._watch.note_step(num_finished=len(finished), num_open=num_open)
        return True

    def _sampling(self) -> SamplingParams:
        # By the version that is loaded now, whatever newer weights arrive while the group is generated.
        version = self._parts.engine.policy_version
        return SamplingParams(
            max_new_tokens=self._settings.max_new_tokens,
            min_new_tokens=self._settings.min_new_tokens,
            stop_strings=self._settings.stop_strings,
            temperature=sampling_temperature_at(self._settings, step=version),
            top_p=self._settings.top_p,
        )

    def _sort_in(self, finished: FinishedRequest) -> None:
        if finished.request_id not in self._requests:  # left over from an evaluation that was given up
            return
        position, number = self._requests.pop(finished.request_id)
        group = self._open[position]
        group.num_open -= 1
        if finished.completion is None:
            logger.warning("request failed request_id=%s error=%.200s", finished.request_id, finished.error)
        else:
            self._parts.status.note_completion(finished.completion)
            group.completions[number] = finished.completion
        if group.num_open == 0:
            del self._open[position]
            self._parts.scorer.submit(group.generated)

    def _deliver(self) -> bool:
        scored = self._parts.scorer.collect()
        for group in scored:
            for _, reward in group.scored:
                self._parts.status.note_reward(reward)
            for metrics in group.metrics:
                self._parts.status.note_reward_metrics(metrics)
            self._parts.outbox.put(group)
        num_written = self._parts.outbox.flush()
        stats = self._parts.ring.stats
        self._parts.status.update(
            num_active_requests=self._parts.engine.num_unfinished,
            ring_fill=stats.used_bytes / stats.capacity_bytes,
        )
        return bool(scored or num_written)

    def _beside_evaluation(self) -> None:
        """What must go on while an evaluation holds the engine: everything but new groups and new weights."""
        self._pulse.progress()
        self._parts.status.note_turn()
        self._deliver()
        if self._run_state > RunState.RUNNING:
            raise EvaluationAbortedError("the run ends")

    def _drain(self) -> None:
        """Write what is finished; what is unfinished is dropped, its prompts come again when the run is resumed."""
        until_s = self._clock.monotonic_s() + DRAIN_S
        try:
            while self._parts.scorer.num_pending + self._parts.outbox.num_waiting:
                self._pulse.progress()
                if self._clock.monotonic_s() > until_s or self._run_state == RunState.STOPPING:
                    break
                if not self._deliver():
                    self._clock.sleep(IDLE_S)
        except TbactlError as error:  # the end of a run is no time to fail it
            logger.error("draining: %s", error)
        logger.info(
            "drained num_unfinished_groups=%d num_unwritten_groups=%d",
            len(self._open),
            self._parts.scorer.num_pending + self._parts.outbox.num_waiting,
        )
