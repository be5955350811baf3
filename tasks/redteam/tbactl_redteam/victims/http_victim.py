"""A victim behind an OpenAI-compatible endpoint.

Whatever the endpoint does, a call of `answer` ends in time: what has not come by then is missing. The key is
read from the environment, sent to the endpoint, and taken out of every text that comes from there.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import httpx

from tbactl.errors import ConfigError, TaskError
from tbactl.terminal import printable_line
from tbactl_redteam.victims.http_exchange import (
    AnswerFailedError,
    EndpointRefusedError,
    RetryableError,
    answer_text,
    endpoint_url,
    exchange,
    request_body,
)
from tbactl_redteam.victims.http_pacing import Pacer, retry_delay_s
from tbactl_redteam.victims.options import VictimOptions

logger = logging.getLogger(__name__)

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One call of `answer` in progress."""

    client: httpx.AsyncClient
    attacks: Sequence[str]
    answers: list[list[str | None]]
    deadline_s: float
    places: asyncio.Semaphore
    failures: Counter[str] = field(default_factory=Counter)
    num_settled: Counter[int] = field(default_factory=Counter)  # of each attack's answers, had or given up


class HttpVictim:
    """Asks for each answer by a request of its own, several at the same time.

    Raises:
        ConfigError: the environment does not have the key, or it cannot be a key.
    """

    def __init__(self, options: VictimOptions) -> None:
        self._options = options
        self._key = _read_key(options.api_key_env)
        self._url = endpoint_url(options)
        self._tls = httpx.create_ssl_context(trust_env=options.environment_proxies)
        self._pacer = Pacer(max_requests_per_s=options.max_requests_per_s)
        self._has_answered = False
        self._num_silent = 0  # attacks in a row without any answer
        # They would write lines for each request.
        for library in ("httpx", "httpcore"):
            logging.getLogger(library).setLevel(logging.WARNING)

    def answer(self, attacks: Sequence[str]) -> list[list[str | None]]:
        """See `Victim`."""
        answers: list[list[str | None]] = [[None] * self._options.num_answers for _ in attacks]
        if attacks:
            asyncio.run(self._run(attacks, answers))
        return answers

    def close(self) -> None:
        """Nothing is held between calls; one that runs ends by its own time-out."""

    async def _run(self, attacks: Sequence[str], answers: list[list[str | None]]) -> None:
        limit_s = self._options.call_timeout_s(len(attacks))
        async with self._client() as client:
            call = _Call(
                client=client,
                attacks=attacks,
                answers=answers,
                deadline_s=time.monotonic() + limit_s,
                places=asyncio.Semaphore(self._options.max_concurrent_requests),
            )
            try:
                async with asyncio.timeout(limit_s):
                    await self._answer_all(call)
            except TimeoutError:
                missing = sum(row.count(None) for row in answers)
                logger.warning("victim answers_missing=%d reason=not within %g s (timeout_s)", missing, limit_s)
                if all(answer is None for row in answers for answer in row):
                    # Those that were given up before have been counted.
                    num_open = sum(call.num_settled[i] < self._options.num_answers for i in range(len(attacks)))
                    self._count_silent(num_open, reason=f"nothing came within {limit_s:g} s (timeout_s)")
        for reason, number in call.failures.most_common():
            logger.warning("victim failed_requests=%d reason=%s", number, reason)

    async def _answer_all(self, call: _Call) -> None:
        if not self._has_answered:
            # Alone: an endpoint that is not there, or refuses, is found out by one request.
            await self._answer_one(call, 0, 0)
        try:
            async with asyncio.TaskGroup() as group:
                for i in range(len(call.attacks)):
                    for k in range(self._options.num_answers):
                        if call.answers[i][k] is None:
                            group.create_task(self._settle_one(call, i, k))
        except* (ConfigError, TaskError) as errors:
            raise errors.exceptions[0] from None

    async def _settle_one(self, call: _Call, i: int, k: int) -> None:
        await self._answer_one(call, i, k)
        call.num_settled[i] += 1
        is_over = call.num_settled[i] == self._options.num_answers
        if is_over and all(text is None for text in call.answers[i]):
            self._count_silent(1, reason=next(reversed(call.failures), "unknown"))

    async def _answer_one(self, call: _Call, i: int, k: int) -> None:
        try:
            async with call.places:  # kept between attempts: an endpoint in trouble is asked less
                call.answers[i][k] = await self._ask(call, attack=call.attacks[i], number=k)
            self._has_answered, self._num_silent = True, 0
        except EndpointRefusedError as error:
            raise ConfigError(f"task.options.victim: {self._options.name} {self._shown(error)}.") from None
        except (AnswerFailedError, RetryableError) as error:
            reason = self._shown(error)
            if isinstance(error, RetryableError) and error.is_unreachable and not self._has_answered:
                raise ConfigError(
                    f"task.options.victim: {self._options.name} cannot be reached: {reason}; check url, and that the "
                    f"endpoint runs."
                ) from None
            call.failures[reason] += 1

    async def _ask(self, call: _Call, *, attack: str, number: int) -> str:
        """One answer, with retries.

        Raises:
            AnswerFailedError: there is none.
            RetryableError: there was none at the last attempt.
            EndpointRefusedError: there never will be one.
        """
        body = request_body(self._options, attack=attack, number=number)
        for attempt in count():
            try:
                content = await self._exchange(call, body)
            except RetryableError as error:
                if attempt == self._options.max_retries:
                    raise
                if error.after_s is not None:
                    self._pacer.pause(error.after_s)
                else:
                    await asyncio.sleep(retry_delay_s(attempt, first_s=self._options.retry_delay_s))
            else:
                return self._redacted(answer_text(content, options=self._options))
        raise AssertionError

    async def _exchange(self, call: _Call, body: bytes) -> bytes:
        options = self._options
        if not await self._pacer.turn(deadline_s=call.deadline_s):
            raise AnswerFailedError("the endpoint, or max_requests_per_s, leaves no turn before timeout_s")
        try:
            async with asyncio.timeout(options.request_timeout_s):
                return await exchange(call.client, url=self._url, body=body, max_bytes=options.max_response_bytes)
        except TimeoutError:
            reason = f"no whole response within request_timeout_s = {options.request_timeout_s:g}"
            raise RetryableError(reason) from None

    def _count_silent(self, number: int, *, reason: str) -> None:
        self._num_silent += number
        if self._num_silent >= self._options.max_consecutive_failures:
            raise TaskError(
                f"the victim {self._options.name} has not answered any of the last {self._num_silent} attacks "
                f"(task.options.victim.max_consecutive_failures = {self._options.max_consecutive_failures}); the last "
                f"failure: {reason}."
            )

    def _client(self) -> httpx.AsyncClient:
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        return httpx.AsyncClient(
            headers=headers,
            verify=self._tls,
            follow_redirects=False,
            trust_env=self._options.environment_proxies,
            timeout=self._options.request_timeout_s,
        )

    def _shown(self, error: Exception) -> str:
        """What went wrong on one short line; the endpoint wrote a part of it."""
        return printable_line(self._redacted(str(error)))[:_SHOWN_CHARACTERS]

    def _redacted(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


def _read_key(variable: str | None) -> str:
    """The key in an environment variable; empty: none is sent.

    Raises:
        ConfigError: there is no such variable, or what it holds cannot be sent.
    """
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"task.options.victim.api_key_env = '{variable}': the environment has no such variable, or it is empty; "
            f"set it to the key."
        )
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            f"task.options.victim.api_key_env = '{variable}': what the variable holds is no key: it has characters "
            f"that cannot be sent in a header."
        )
    return key
