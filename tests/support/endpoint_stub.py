"""A stand-in for an OpenAI-compatible endpoint, on loopback: answers by a script, and misbehaves on request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What the endpoint does with one request."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    declares_length: bool = True
    """Otherwise the end of the connection is the end of the body."""
    delay_s: float = 0.0
    """Before the first byte."""
    cut_after: int | None = None
    """Close the connection after so many bytes of the body."""
    drip_s: float = 0.0
    """Between two bytes of the body."""


def chat(text: str | None, **more: Any) -> Reply:
    """A good reply of /chat/completions."""
    return Reply(body=json.dumps({"choices": [{"message": {"role": "assistant", "content": text}}]}).encode(), **more)


def completion(text: str) -> Reply:
    """A good reply of /completions."""
    return Reply(body=json.dumps({"choices": [{"text": text}]}).encode())


@dataclass(frozen=True)
class Request:
    """What the endpoint was sent."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at_s: float


class EndpointStub:
    """Serves in threads of this process while its `with` block runs.

    Args:
        script: from the number of a request (0, 1, ...) and its body to the reply.
    """

    def __init__(self, script: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.requests: list[Request] = []
        self.num_sent_bytes = 0
        self.max_together = 0
        self._num_together = 0
        self._script = script
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False  # a reply that sleeps must not hold up a test
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with stub._lock:
                    number = len(stub.requests)
                    stub.requests.append(Request(self.path, dict(self.headers), body, time.monotonic()))
                    stub._num_together += 1
                    stub.max_together = max(stub.max_together, stub._num_together)
                try:
                    stub._send(self, stub._script(number, body))
                except (BrokenPipeError, ConnectionResetError):  # the client has seen enough
                    self.close_connection = True
                finally:
                    with stub._lock:
                        stub._num_together -= 1

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        time.sleep(reply.delay_s)
        handler.send_response(reply.status)
        length = {"Content-Length": str(len(reply.body))} if reply.declares_length else {"Connection": "close"}
        for name, value in {**length, **reply.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        body = reply.body if reply.cut_after is None else reply.body[: reply.cut_after]
        size = 1 if reply.drip_s else 65536
        for start in range(0, len(body), size):
            handler.wfile.write(body[start : start + size])
            self.num_sent_bytes += len(body[start : start + size])
            time.sleep(reply.drip_s)
        if reply.cut_after is not None:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
