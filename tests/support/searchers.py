"""A searcher in this process: real ring, control page and weights directory, fake engine, fake task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tbactl.clock import Clock, SystemClock
from tbactl.config.engine import EngineConfig
from tbactl.config.layout import ProcessConfig
from tbactl.config.sections import RunConfig
from tbactl.ipc.child import Pulse
from tbactl.ipc.codec import decode
from tbactl.ipc.control_page import ControlPage, RunState
from tbactl.ipc.ring import RingReader, RingWriter, create_ring
from tbactl.protocols import ProbeBatch, Task
from tbactl.searcher.delivery import Outbox, UidSource
from tbactl.searcher.evaluation import Evaluator
from tbactl.searcher.loop import Searcher, SearcherParts
from tbactl.searcher.prompt_stream import Cursor, PromptStream
from tbactl.searcher.scoring import Scorer
from tbactl.searcher.status import Status
from tbactl.telemetry.trace import NoTrace
from tbactl.testing.fake_engine import FakeEngine
from tbactl.testing.fake_policy import FakePolicy
from tbactl.testing.fake_task import FakeTask
from tbactl.types import TrajectoryGroup
from tbactl.weight_sync.publisher import publish
from tbactl.weight_sync.subscriber import Subscriber

# A turn without work takes a millisecond. Reached only by a searcher that never gets there.
MAX_TURNS = 60_000
PROBE = ProbeBatch(sequences=(((1, 2, 3, 0), 2), ((5, 6), 1)))


class SearcherHarness:
    """Builds one searcher and plays supervisor and trainer for it."""

    def __init__(
        self,
        root: Path,
        *,
        settings: dict[str, Any] | None = None,
        task: Task | None = None,
        held_out_task: Task | None = None,
        index: int = 0,
        ring_capacity_bytes: int = 2**20,
        start: int = 0,
        attempt: int = 1,
        must_load: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.run = RunConfig.model_validate(
            {
                "name": "test",
                "task": {"kind": "fake"},
                "policy": {"path": "unused"},
                "searchers": {"engine": "fake", "num_completions": 3, "max_new_tokens": 8, "max_concurrent_groups": 2},
            }
            | (settings or {})
        )
        self.config = ProcessConfig(
            role="searcher",
            index=index,
            run=self.run,
            run_directory=root,
            shm_directory=root,
            policy_directory=root / "policy",
        )
        num_searchers = self.run.searchers.num_searchers
        if not self.config.shm.control.exists():
            ControlPage.create(self.config.shm.control, num_trainer_ranks=1, num_searchers=num_searchers)
            for searcher in range(num_searchers):
                create_ring(self.config.shm.ring(searcher), capacity_bytes=ring_capacity_bytes)
        self.page = ControlPage.open(self.config.shm.control)
        self.trainer = self.page.trainer()
        self.slot = self.page.searcher(index)
        self.page.supervisor.set(run_state=RunState.RUNNING)
        self.clock = clock or SystemClock()
        self.ring = RingWriter.open(self.config.shm.ring(index))
        self.reader: RingReader | None = None
        self.task = task or FakeTask(num_prompts=50)
        self.engine = FakeEngine(EngineConfig.from_process(self.config))
        self.stream = PromptStream(
            self.task.prompts("train", seed=self.run.seed),
            encode=self.engine.encode,
            max_prompt_tokens=self.run.searchers.max_prompt_tokens,
            searcher=index,
            num_searchers=num_searchers,
            start=start,
        )
        self.cursor = Cursor(self.stream.next_position, stride=num_searchers)
        self.slot.set(stream_position=self.cursor.position)
        self.scorer = Scorer(self.task, clock=self.clock, limit_s=60.0)
        self.evaluator = Evaluator(
            self.config,
            task=held_out_task or FakeTask(num_prompts=50),
            engine=self.engine,
            page=self.page,
            resumed_version=0,
            clock=self.clock,
        )
        self.outbox = Outbox(
            self.ring,
            cursor=self.cursor,
            slot=self.slot,
            searcher=index,
            uids=UidSource(searcher=index, resumed_step=0, attempt=attempt),
            in_order=self.run.mode == "sync",
        )
        parts = SearcherParts(
            engine=self.engine,
            stream=self.stream,
            scorer=self.scorer,
            outbox=self.outbox,
            ring=self.ring,
            subscriber=Subscriber(
                self.config.shm.weights,
                policy_directory=self.config.policy_directory,
                max_logprob_difference=1e-3,
                clock=self.clock,
            ),
            evaluator=self.evaluator,
            status=Status(self.slot, clock=self.clock),
            trace=NoTrace(),
        )
        self.searcher = Searcher(
            self.config,
            parts,
            page=self.page,
            pulse=Pulse(self.slot, supervisor=self.page.supervisor),
            must_load=must_load,
            clock=self.clock,
        )

    def turns(self, count: int) -> None:
        """Let the loop turn; it pauses as `run` does when it has nothing to do."""
        for _ in range(count):
            if not self.searcher.turn():
                self.clock.sleep(0.001)

    @property
    def is_held_up(self) -> bool:
        """Whether all that is begun waits for room in the ring, and the control page says so."""
        is_idle = not self.engine.num_unfinished and not self.scorer.num_pending
        is_full = self.slot.get_float("f_ring_fill") > 0.5
        return is_idle and is_full and self.outbox.num_waiting >= self.run.searchers.max_concurrent_groups

    def turns_until_held_up(self) -> None:
        """Fill the ring. Not by a number of turns: rewards come from a thread, which may have to wait for a core."""
        for _ in range(MAX_TURNS):
            if self.is_held_up:
                return
            self.turns(1)
        raise AssertionError(f"the ring is not full after {MAX_TURNS} turns")

    def groups(self) -> list[TrajectoryGroup]:
        """What the trainer finds in the ring now."""
        if self.reader is None:
            self.reader = RingReader.open(self.config.shm.ring(self.config.index))
        found = []
        while (payload := self.reader.try_read()) is not None:
            group = decode(payload)
            assert isinstance(group, TrajectoryGroup)
            found.append(group)
        return found

    def groups_after(self, num_groups: int, *, max_turns: int = MAX_TURNS) -> list[TrajectoryGroup]:
        """Turn until so many groups have come."""
        found: list[TrajectoryGroup] = []
        for _ in range(max_turns):
            found += self.groups()
            if len(found) >= num_groups:
                return found
            self.turns(1)
        raise AssertionError(f"{len(found)} groups instead of {num_groups} after {max_turns} turns")

    def publish(self, version: int, *, policy: FakePolicy | None = None) -> FakePolicy:
        """Publish weights as the trainer does; by default other ones for each version."""
        if policy is None:
            logits = FakePolicy.initial(Path("/nowhere")).logits.copy()
            logits[1] += version
            policy = FakePolicy(logits)
        table = policy.log_probabilities()
        scores = [tuple(float(table[token]) for token in ids[start:]) for ids, start in PROBE.sequences]
        publish(self.config.shm.weights, version=version, write=policy.save, probe=PROBE, probe_logprobs=scores)
        self.trainer.set(published_version=version)
        return policy

    def close(self) -> None:
        """Give up the ring's ends, as the end of a process would."""
        self.scorer.close()
        self.ring.close()
        if self.reader is not None:
            self.reader.close()
