"""`python -m tbactl.cluster --config FILE`: a searcher on a node of a Ray cluster; ends with that one's exit code."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from tbactl import __version__
from tbactl.clock import SystemClock
from tbactl.cluster.bridge import Bridge, run_state
from tbactl.cluster.messages import Order, Words
from tbactl.cluster.mirror import OWN
from tbactl.cluster.policy_files import policy_listing
from tbactl.config.layout import ProcessConfig
from tbactl.errors import EXIT_TERMINATED, TbactlError
from tbactl.ipc.child import die_with_parent, run_and_leave
from tbactl.ipc.control_page import ControlPage, ProcessState
from tbactl.ipc.ring import RingWriter
from tbactl.searcher.evaluation import MARKER
from tbactl.searcher.resume import kept_point, resume_point
from tbactl.supervision.policy import published_bytes

logger = logging.getLogger("tbactl.cluster")


def main() -> int:
    """Run as configured."""
    parser = argparse.ArgumentParser(prog="python -m tbactl.cluster")
    parser.add_argument("--config", type=Path, required=True)
    arguments = parser.parse_args()
    die_with_parent()
    config = ProcessConfig.model_validate_json(arguments.config.read_bytes())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", stream=sys.stderr)
    try:
        return run_bridge(config)
    except TbactlError as error:
        logger.error("%s", error)
        return error.exit_code
    except SystemExit:  # `_leave`: not through an interpreter that tears down with Ray's threads
        return EXIT_TERMINATED


def run_bridge(config: ProcessConfig) -> int:
    """Have the searcher run elsewhere, until it ends; returns its exit code.

    Raises:
        TbactlError: it cannot start, or its node is lost.
    """
    started_s = time.monotonic()
    # Before the pid is shown: who shows one is asked for stacks by this signal, which would end it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    page = ControlPage.open(config.shm.control)
    slot = page.searcher(config.index)
    slot.set(
        pid=os.getpid(),
        state=ProcessState.LOADING,
        heartbeat_ns=time.monotonic_ns(),
        progress_ns=time.monotonic_ns(),
    )
    state = ProcessState.FAILED
    try:
        with RingWriter.open(config.shm.ring(config.index)) as ring:
            exit_code = _run(config, page=page, ring=ring, started_s=started_s)
        state = ProcessState.STOPPED if exit_code == 0 else ProcessState.FAILED
        return exit_code
    finally:
        slot.set(state=state, progress_ns=time.monotonic_ns())


def _run(config: ProcessConfig, *, page: ControlPage, ring: RingWriter, started_s: float) -> int:
    # Imports ray, which takes a while and may be missing.
    from tbactl.cluster.ray_peer import RayPeer

    order = the_order(config, page=page)
    peer = RayPeer(config, order, started_s=started_s, is_first=order.words["attempt"] <= 1)
    signal.signal(signal.SIGTERM, _leave)  # after Ray has set its own
    try:
        bridge = Bridge(config, peer, page=page, ring=ring, clock=SystemClock())

        def ask_for_stacks(number: int, frame: FrameType | None) -> None:
            bridge.wants_stacks = True

        faulthandler.unregister(signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, ask_for_stacks)
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=True)
        return bridge.run()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end is bounded, and on its way
        peer.close()


def the_order(config: ProcessConfig, *, page: ControlPage) -> Order:
    """What an outpost is told about this searcher.

    Raises:
        CheckpointError: the checkpoint to resume from cannot be used.
    """
    resume_point(config)  # reads the checkpoint, which a node may not see, and keeps what it found
    kept = (config.shm.root / MARKER, kept_point(config))
    return Order(
        tbactl_version=__version__,
        process=config.model_dump_json().encode(),
        words=words_of_earlier_lives(page, index=config.index),
        files={path.name: path.read_bytes() if path.is_file() else b"" for path in kept},
        policy=policy_listing(config.policy_directory),
        policy_bytes=published_bytes(config.run.policy, directory=config.policy_directory),
        request=run_state(page),
    )


def words_of_earlier_lives(page: ControlPage, *, index: int) -> Words:
    """A searcher's attempt and counters, without what is the bridge's own and without times."""
    words = page.searcher(index).snapshot()
    return {n: value for n, value in words.items() if value and n not in OWN and not n.endswith("_ns")}


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(EXIT_TERMINATED)


if __name__ == "__main__":
    run_and_leave(main)
