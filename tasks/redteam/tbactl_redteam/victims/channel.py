"""How a searcher and its victim's process talk: frames of JSON over a pair of sockets, never pickle.

First the searcher sends `Start`; the victim answers `Ready` or `Failed`. Then, for each `Ask`, come `Answered` as
answers are finished, and `Done`.
"""

from __future__ import annotations

import socket
import struct
import time

import msgspec

MAX_FRAME_BYTES = 64 * 2**20
_LENGTH = struct.Struct("<I")


class Start(msgspec.Struct, frozen=True, tag=True):
    """`options` is the JSON of VictimOptions."""

    options: str
    cores: tuple[int, ...]


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Answer these attacks."""

    attacks: tuple[str, ...]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It cannot be loaded; the process ends."""

    message: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """One answer; `problem` says why there is none."""

    attack: int
    number: int
    text: str | None
    problem: str = ""


class Done(msgspec.Struct, frozen=True, tag=True):
    """All answers of the last `Ask` were sent."""


Message = Start | Ask | Ready | Failed | Answered | Done
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class Channel:
    """One end of the pair. Not thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: Message, *, timeout_s: float | None = None) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other side does not read.
            ConnectionError: the other side is gone.
        """
        payload = msgspec.json.encode(message)
        assert len(payload) <= MAX_FRAME_BYTES, len(payload)
        self._connection.settimeout(timeout_s)
        self._connection.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self, *, timeout_s: float | None = None) -> Message | None:
        """The next message; None: the other side is gone.

        Raises:
            TimeoutError: no whole message came in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        header = self._read(_LENGTH.size, deadline=deadline)
        if header is None:
            return None
        (length,) = _LENGTH.unpack(header)
        assert length <= MAX_FRAME_BYTES, length
        payload = self._read(length, deadline=deadline)
        return None if payload is None else _decoder.decode(payload)

    def close(self) -> None:
        """The other side sees the end."""
        self._connection.close()

    def _read(self, size: int, *, deadline: float | None) -> bytes | None:
        received = bytearray()
        while len(received) < size:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._connection.settimeout(left_s)
            try:
                chunk = self._connection.recv(size - len(received))
            except ConnectionError:
                return None
            if not chunk:
                return None
            received += chunk
        return bytes(received)
