"""One request to an OpenAI-compatible endpoint: what is sent, how much is read, what its answer means."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from tbactl_redteam.victims.http_pacing import retry_after_s
from tbactl_redteam.victims.options import VictimOptions
from tbactl_redteam.victims.prompt_template import conversation, fill
from tbactl_redteam.victims.seeds import answer_seed

_RETRIED = frozenset((408, 425, 429))
_FINAL = {
    401: "refuses the key",
    403: "forbids the request",
    404: "does not know the address or the model",
}
_ERROR_BYTES = 2000


class AnswerFailedError(Exception):
    """There is no answer, and asking again would not help."""


class RetryableError(Exception):
    """There is no answer yet.

    Args:
        reason: why.
        after_s: what the endpoint asks to wait; None: it does not say.
        is_unreachable: no connection could be made.
    """

    def __init__(self, reason: str, *, after_s: float | None = None, is_unreachable: bool = False) -> None:
        super().__init__(reason)
        self.after_s = after_s
        self.is_unreachable = is_unreachable


class EndpointRefusedError(Exception):
    """The endpoint, the key or the model is wrong: no request can succeed."""


class _Message(msgspec.Struct):
    content: str | None
    refusal: str | None = None


class _ChatChoice(msgspec.Struct):
    message: _Message


class _ChatResponse(msgspec.Struct):
    choices: list[_ChatChoice]


class _TextChoice(msgspec.Struct):
    text: str


class _TextResponse(msgspec.Struct):
    choices: list[_TextChoice]


def endpoint_url(options: VictimOptions) -> str:
    """Where requests go."""
    path = "chat/completions" if options.prompt_style == "chat" else "completions"
    return f"{(options.url or '').rstrip('/')}/{path}"


def request_body(options: VictimOptions, *, attack: str, number: int) -> bytes:
    """The JSON that asks for one answer."""
    text = fill(options.template, attack=attack)
    body: dict[str, Any] = {
        "model": options.model,
        "max_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
    }
    if options.prompt_style == "chat":
        body["messages"] = conversation(text, system_prompt=options.system_prompt)
    else:
        body["prompt"] = text
    if options.seed is not None:
        body["seed"] = answer_seed(options.seed, attack=attack, number=number)
    return msgspec.json.encode(body)


async def exchange(client: httpx.AsyncClient, *, url: str, body: bytes, max_bytes: int) -> bytes:
    """Send a request; returns the content of a successful response.

    Raises:
        RetryableError: time-out, cut connection, or a status that says "later".
        AnswerFailedError: another status, or the response is too long.
        EndpointRefusedError: a status that no further request will change, or a redirect.
    """
    try:
        async with client.stream("POST", url, content=body) as response:
            if response.is_success:
                return await _read(response, max_bytes=max_bytes)
            excerpt = (await _read_start(response)).decode("utf-8", errors="replace")
    except httpx.TransportError as error:
        unreachable = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError)
        raise RetryableError(f"{type(error).__name__}: {error}", is_unreachable=unreachable) from None
    raise _status_error(response, excerpt)


def answer_text(content: bytes, *, options: VictimOptions) -> str:
    """The answer in a response, as it is but for its ends; a refusal of the model is an answer too.

    Raises:
        AnswerFailedError: the response is not JSON of the expected form.
    """
    try:
        if options.prompt_style == "chat":
            message = msgspec.json.decode(content, type=_ChatResponse).choices[0].message
            text = message.content or message.refusal or ""
        else:
            text = msgspec.json.decode(content, type=_TextResponse).choices[0].text
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise AnswerFailedError(f"the response is not of the expected form: {error}") from None
    except IndexError:
        raise AnswerFailedError("the response holds no choice") from None
    return text.strip()[: options.max_answer_characters]


async def _read(response: httpx.Response, *, max_bytes: int) -> bytes:
    if response.headers.get("content-encoding", "identity") != "identity":
        # A small body could unpack to a huge one; none was asked for.
        raise AnswerFailedError(f"the response is compressed ({response.headers['content-encoding']!r})")
    declared = response.headers.get("content-length", "")
    content = bytearray()
    if not (declared.isdecimal() and int(declared[:20]) > max_bytes):
        async for chunk in response.aiter_raw():
            content += chunk
            if len(content) > max_bytes:
                break
        else:
            return bytes(content)
    raise AnswerFailedError(f"the response is longer than max_response_bytes = {max_bytes}")


async def _read_start(response: httpx.Response) -> bytes:
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) >= _ERROR_BYTES:
            break
    return bytes(content[:_ERROR_BYTES])


def _status_error(response: httpx.Response, excerpt: str) -> Exception:
    status = response.status_code
    shown = f"status {status}: {excerpt}" if excerpt.strip() else f"status {status}"
    if response.is_redirect:
        return EndpointRefusedError(f"redirects, which is not followed ({shown}); give its final address as url")
    if status in _FINAL:
        return EndpointRefusedError(f"{_FINAL[status]} ({shown})")
    if status in _RETRIED or status >= 500:
        return RetryableError(shown, after_s=retry_after_s(response.headers.get("retry-after")))
    return AnswerFailedError(shown)
