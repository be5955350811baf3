"""The victim's process as its owner sees it: started on the owner's cores, asked, ended."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress

from tbactl.errors import ConfigError
from tbactl_redteam.victims.channel import Answered, Ask, Channel, Done, Failed, Message, Ready, Start
from tbactl_redteam.victims.options import VictimOptions

logger = logging.getLogger(__name__)

_WORKER = "tbactl_redteam.victims.engine_worker"
_SEND_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 10.0
# What vLLM has set in this process for its own engine.
_NOT_INHERITED = ("VLLM_PORT", "VLLM_DIST_IDENT")


class VictimLostError(Exception):
    """The process has died, or does not answer in time; the message says which."""


class VictimLateError(VictimLostError):
    """The process does not load the model, or answer, in time."""


class VictimProcess:
    """A process that loads the victim and answers attacks. Used by one thread at a time, but `end` by any.

    Raises:
        ConfigError: no process can be started.
    """

    def __init__(self, options: VictimOptions) -> None:
        self._options = options
        self._started_s = time.monotonic()
        self._is_ready = False
        ours, theirs = socket.socketpair()
        started: Future[subprocess.Popen[bytes]] = Future()
        self._keeper = threading.Thread(target=_keep, args=(theirs, started), name="victim-keeper", daemon=True)
        self._keeper.start()
        try:
            self._process = started.result()
        except OSError as error:
            raise ConfigError(f"the victim's process cannot be started: {error.strerror}.") from None
        self._channel = Channel(ours)
        self._channel_in_use = threading.Lock()
        start = Start(options=options.model_dump_json(exclude_unset=True), cores=process_cores())
        with suppress(OSError):  # it is dead already, which the first wait will see
            self._channel.send(start, timeout_s=_SEND_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait until the model is loaded, up to `start_timeout_s` from the start of the process.

        Raises:
            ConfigError: it cannot be loaded.
            VictimLostError: the process has died, or the time is over.
        """
        if self._is_ready:
            return
        message = self._receive(deadline_s=self._started_s + self._options.start_timeout_s, doing="load the model")
        if isinstance(message, Failed):
            raise ConfigError(
                f"task.options.victim.policy = '{self._options.policy}' cannot be loaded: {message.message}"
            )
        assert isinstance(message, Ready), message
        self._is_ready = True
        logger.info("victim=%s pid=%d seconds=%.1f", self._options.name, self.pid, time.monotonic() - self._started_s)

    def ask(self, attacks: Sequence[str]) -> Iterator[Answered]:
        """Answers as they are finished; all attacks are asked at once.

        Raises:
            VictimLostError: the process has died, or the time for a call is over, with answers still missing.
        """
        deadline_s = time.monotonic() + self._options.call_timeout_s(len(attacks))
        try:
            self._channel.send(Ask(tuple(attacks)), timeout_s=_SEND_TIMEOUT_S)
        except OSError:
            raise VictimLostError(self._how_it_ended()) from None
        while not isinstance(message := self._receive(deadline_s=deadline_s, doing="answer"), Done):
            assert isinstance(message, Answered), message
            yield message

    def end(self) -> None:
        """Kill the process and reap it; a wait for it in another thread ends."""
        self._process.kill()
        self._keeper.join(timeout=_END_TIMEOUT_S)
        with self._channel_in_use:
            self._channel.close()

    def _receive(self, *, deadline_s: float, doing: str) -> Message:
        message = None
        with self._channel_in_use, suppress(OSError):  # closed by `end`
            try:
                message = self._channel.receive(timeout_s=max(0.0, deadline_s - time.monotonic()))
            except TimeoutError:
                limit = "timeout_s" if self._is_ready else "start_timeout_s"
                raise VictimLateError(
                    f"it did not {doing} within {limit} = {getattr(self._options, limit):g}"
                ) from None
        if message is None:
            raise VictimLostError(self._how_it_ended())
        return message

    def _how_it_ended(self) -> str:
        self._keeper.join(timeout=_END_TIMEOUT_S)
        code = self._process.returncode
        if code is None:
            return "it has closed its socket"
        return f"its process ended with exit code {code}" if code >= 0 else f"its process was killed by signal {-code}"


def process_cores() -> tuple[int, ...]:
    """The cores that the threads of this process run on; empty where that cannot be known.

    A process started by a thread inherits the cores of that thread only, and an engine binds each of its threads to
    one.
    """
    cores: set[int] = set()
    with suppress(OSError):  # not Linux, or a thread has just ended
        for thread in os.listdir("/proc/self/task"):
            cores |= os.sched_getaffinity(int(thread))
    return tuple(sorted(cores))


def _keep(theirs: socket.socket, started: Future[subprocess.Popen[bytes]]) -> None:
    """Start the process, and stay with it: the kernel ends a child when the *thread* that started it ends."""
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, str(theirs.fileno())],
            env={name: value for name, value in os.environ.items() if name not in _NOT_INHERITED},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )
    except OSError as error:
        started.set_exception(error)
        return
    finally:
        theirs.close()
    started.set_result(process)
    process.wait()
