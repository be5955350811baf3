"""Symbolic equality by math-verify, in a worker process that is killed when one comparison takes too long.

Signals would not do: they work in the main thread only and cannot interrupt a long multiplication. The worker
(`python -m tbactl_math.verifier`) is started at the first comparison that needs it, reads and writes one JSON object a
line, dies with its parent, and has a memory limit. What it compares is parsed as LaTeX; text is never evaluated.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

START_TIMEOUT_S = 120.0
MEMORY_LIMIT_BYTES = 2 * 2**30
_CACHE_SIZE = 4096
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one comparison.

    "unreadable": one side is no mathematics that the library understands. "exhausted": the time or memory limit was
    reached. "failed": the verifier itself is broken; nothing is known about the answer.
    """

    outcome: Literal["equal", "different", "unreadable", "exhausted", "failed"]
    detail: str = ""


class Verifier:
    """Owns the worker. Thread-safe: comparisons take turns. Results are cached, so a repeated bomb costs once.

    Args:
        time_limit_s: limit for one comparison; when it passes the worker is killed and another one is started.
        memory_limit_bytes: limit of the worker's address space.
    """

    def __init__(self, *, time_limit_s: float, memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> None:
        self._time_limit_s = time_limit_s
        self._memory_limit_bytes = memory_limit_bytes
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._received = b""
        self._cache: dict[tuple[str, str], Comparison] = {}

    @property
    def worker_pid(self) -> int | None:
        """Process id of the running worker, if there is one."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def compare(self, answer: str, gold: str) -> Comparison:
        """Whether two LaTeX expressions mean the same. Never raises for what they say."""
        with self._lock:
            known = self._cache.get((answer, gold))
            if known:
                return known
            comparison = self._compare(answer, gold)
            if comparison.outcome != "failed":
                while len(self._cache) >= _CACHE_SIZE:
                    del self._cache[next(iter(self._cache))]
                self._cache[answer, gold] = comparison
            return comparison

    def close(self) -> None:
        """End the worker."""
        with self._lock:
            self._stop()

    def _compare(self, answer: str, gold: str) -> Comparison:
        request = json.dumps({"answer": answer, "gold": gold}).encode() + b"\n"
        # A worker can be found dead without anyone's fault: the kernel ends it with the thread that started it.
        for _ in range(2):
            try:
                self._start()
                reply = self._exchange(request)
            except OSError as error:
                self._stop()
                return Comparison("failed", f"the verifier does not start: {error}")
            if reply is not None:
                return Comparison(reply["outcome"], reply["detail"])
            if self.worker_pid is not None:
                self._stop()
                self._spawn()
                return Comparison("exhausted", f"no result within {self._time_limit_s:g} s")
        status = self._stop()
        return Comparison("failed", f"the verifier ended with exit status {status}")

    def _start(self) -> None:
        if self.worker_pid is None:
            self._stop()
            self._spawn()
        if not self._is_ready:
            if self._read_line(START_TIMEOUT_S) is None:
                raise OSError(f"no sign of life within {START_TIMEOUT_S:g} s; exit status {self._stop()}")
            self._is_ready = True

    def _spawn(self) -> None:
        command = [sys.executable, "-m", __name__, str(os.getpid()), str(self._memory_limit_bytes)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._is_ready, self._received = False, b""

    def _stop(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        status = process.poll()
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        return status

    def _exchange(self, request: bytes) -> dict[str, Any] | None:
        """The reply, or None when the worker is dead or too slow."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(request)
        except BrokenPipeError:
            self._process.wait()
            return None
        line = self._read_line(self._time_limit_s)
        return json.loads(line) if line else None

    def _read_line(self, timeout_s: float) -> bytes | None:
        assert self._process is not None and self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not poll.poll(remaining * 1000):
                return None
            chunk = os.read(descriptor, 65536)
            if not chunk:
                self._process.wait()
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        return line


def _live_bounded(*, parent_pid: int, memory_limit_bytes: int) -> None:
    """Die with the parent, leave Ctrl-C to it, and take no more than the given memory."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the request was in place
        os._exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, memory_limit_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _symbolic_comparison(answer: str, gold: str) -> dict[str, str]:
    """Compare with math-verify; only its LaTeX grammar is used, since its other parser evaluates Python text."""
    from math_verify import LatexExtractionConfig, parse, verify

    readings = []
    for side, text in (("expected answer", gold), ("answer", answer)):
        try:
            reading = parse(
                f"${text}$",
                [LatexExtractionConfig()],
                fallback_mode="no_fallback",
                parsing_timeout=None,  # pyright: ignore[reportArgumentType]  (None switches its signals off)
                raise_on_error=True,
            )
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # ANTLR and SymPy raise many types for text they cannot read
            return {"outcome": "unreadable", "detail": f"{side}: {type(error).__name__}"}
        if not reading:
            return {"outcome": "unreadable", "detail": side}
        readings.append(reading)
    is_equal = verify(readings[0], readings[1], timeout_seconds=None, raise_on_error=True)
    return {"outcome": "equal" if is_equal else "different", "detail": ""}


def _reply(request: dict[str, str]) -> dict[str, str]:
    try:
        return _symbolic_comparison(request["answer"], request["gold"])
    except (MemoryError, RecursionError) as error:
        return {"outcome": "exhausted", "detail": type(error).__name__}
    except Exception as error:  # the one boundary around third-party algebra: an unknown error is reported, not guessed
        return {"outcome": "failed", "detail": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """The worker: one JSON request a line on standard input, one JSON reply a line on standard output."""
    _live_bounded(parent_pid=int(sys.argv[1]), memory_limit_bytes=int(sys.argv[2]))
    import logging

    logging.disable(logging.CRITICAL)
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # nothing that a library prints gets between the replies
    # The first comparison is slow (imports, grammar tables): it must not count against the first answer.
    _symbolic_comparison("\\frac{\\sqrt{4}}{x}", "\\frac{2}{x}")
    replies.write(b"{}\n")
    for line in sys.stdin.buffer:
        replies.write(json.dumps(_reply(json.loads(line))).encode() + b"\n")


if __name__ == "__main__":
    main()
