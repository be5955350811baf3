"""When the next request to an endpoint may go out: rate limit, pauses that the endpoint asks for, back-off."""

from __future__ import annotations

import asyncio
import email.utils
import random
import time

_MAX_DELAY_S = 30.0


class Pacer:
    """Turns of one endpoint's requests, in the order in which they are asked for. Used by one event loop at a time.

    Args:
        max_requests_per_s: 0: no limit.
    """

    def __init__(self, *, max_requests_per_s: float) -> None:
        self._interval_s = 1.0 / max_requests_per_s if max_requests_per_s else 0.0
        self._next_turn_s = 0.0

    async def turn(self, *, deadline_s: float) -> bool:
        """Wait for a turn; False, at once, when there is none before the deadline (of `time.monotonic`)."""
        now_s = time.monotonic()
        turn_s = max(now_s, self._next_turn_s)
        if turn_s > deadline_s:
            return False
        self._next_turn_s = turn_s + self._interval_s
        await asyncio.sleep(turn_s - now_s)
        return True

    def pause(self, seconds: float) -> None:
        """Nobody gets a turn before so many seconds have passed."""
        self._next_turn_s = max(self._next_turn_s, time.monotonic() + seconds)


def retry_delay_s(attempt: int, *, first_s: float) -> float:
    """Exponential back-off with jitter: the delay after attempt 0, 1, ..., a half to all of its full length."""
    return min(first_s * 2**attempt, _MAX_DELAY_S) * random.uniform(0.5, 1.0)


def retry_after_s(header: str | None) -> float | None:
    """Seconds that a `Retry-After` header asks to wait (RFC 9110, 10.2.3: a number or a date); None: none."""
    if header is None:
        return None
    if header.strip().isdecimal():
        return float(header) if len(header) <= 12 else None
    try:
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
