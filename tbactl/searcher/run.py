"""Builds a searcher from its settings and runs it."""

from __future__ import annotations

import logging
from contextlib import closing

from tbactl import registry
from tbactl.clock import SystemClock
from tbactl.config.engine import EngineConfig
from tbactl.config.layout import ProcessConfig
from tbactl.config.tasks import build_task, reward_metrics
from tbactl.ipc.child import Pulse
from tbactl.ipc.control_page import ControlPage, ProcessState, Slot
from tbactl.ipc.ring import RingWriter
from tbactl.searcher.delivery import Outbox, UidSource
from tbactl.searcher.evaluation import Evaluator
from tbactl.searcher.loop import Searcher, SearcherParts
from tbactl.searcher.prompt_stream import Cursor, PromptStream
from tbactl.searcher.resume import resume_point
from tbactl.searcher.scoring import Scorer
from tbactl.searcher.status import Status
from tbactl.telemetry.trace import Trace, measured, process_trace
from tbactl.weight_sync.subscriber import Subscriber

logger = logging.getLogger(__name__)


def run_searcher(config: ProcessConfig) -> None:
    """Run a searcher to its end.

    Raises:
        TbactlError: it cannot start or cannot go on.
    """
    page = ControlPage.open(config.shm.control)
    slot = page.searcher(config.index)
    pulse = Pulse(slot, supervisor=page.supervisor)
    pulse.start()
    pulse.enter(ProcessState.LOADING)
    try:
        with RingWriter.open(config.shm.ring(config.index)) as ring, closing(process_trace(config)) as trace:
            _run(config, page=page, slot=slot, pulse=pulse, ring=ring, trace=trace)
    except BaseException:
        pulse.enter(ProcessState.FAILED)
        raise
    pulse.enter(ProcessState.STOPPED)
    pulse.stop()


def _run(config: ProcessConfig, *, page: ControlPage, slot: Slot, pulse: Pulse, ring: RingWriter, trace: Trace) -> None:
    clock = SystemClock()
    run = config.run
    is_sync = run.mode == "sync"
    resumed = resume_point(config)
    task, held_out_task = (build_task(run.task.kind, run.task.options) for _ in range(2))
    start_s = clock.monotonic_s()
    with measured(trace, "start_engine"):
        engine = registry.load("tbactl.engines", run.searchers.engine)(EngineConfig.from_process(config))
    logger.info("engine=%s start_seconds=%.1f", run.searchers.engine, clock.monotonic_s() - start_s)
    stream = PromptStream(
        task.prompts("train", seed=run.seed),
        encode=engine.encode,
        max_prompt_tokens=run.searchers.max_prompt_tokens,
        searcher=config.index,
        num_searchers=run.searchers.num_searchers,
        start=slot.get("stream_position") or resumed.position,
        on_progress=pulse.progress,
    )
    cursor = Cursor(stream.next_position, stride=run.searchers.num_searchers)
    slot.set(stream_position=cursor.position)
    scorer = Scorer(task, clock=clock, limit_s=run.supervision.progress_timeout_s)
    uids = UidSource(
        searcher=config.index,
        resumed_step=None if config.resume_checkpoint is None else resumed.step,
        attempt=slot.get("attempt"),
    )
    parts = SearcherParts(
        engine=engine,
        stream=stream,
        scorer=scorer,
        outbox=Outbox(ring, cursor=cursor, slot=slot, searcher=config.index, uids=uids, in_order=is_sync),
        ring=ring,
        subscriber=Subscriber(
            config.shm.weights,
            policy_directory=config.policy_directory,
            max_logprob_difference=run.sync.max_logprob_difference,
            clock=clock,
        ),
        evaluator=Evaluator(
            config, task=held_out_task, engine=engine, page=page, resumed_version=resumed.step, clock=clock
        ),
        status=Status(slot, clock=clock, reward_metrics=reward_metrics(run.task.kind)),
        trace=trace,
    )
    pulse.enter(ProcessState.READY)
    logger.info("ready stream_position=%d resumed_step=%d", cursor.position, resumed.step)
    Searcher(config, parts, page=page, pulse=pulse, must_load=resumed.step > 0, clock=clock).run()
    scorer.close()
    task.close()
    held_out_task.close()
