"""Both ends of the channels that benchmarks/ipc.py compares. Imports nothing but the standard library at its top.

    python -m benchmarks.channel_ends read|write SERVICE COUNT SIZE     an end of iceoryx2, in its own environment

A writer sends COUNT payloads of SIZE bytes as fast as they are taken, a reader copies each out and checks its number. A
reader tells the seconds from its first payload to its last.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

Write = Callable[[bytes], bool]
"""Whether it was taken; if not it is tried again."""
Read = Callable[[], bytes | None]
"""The next payload; None: none there yet."""

NUMBER_BYTES = 8
WAIT_S = 2e-4
"""Between two tries: a wait that spins would take the core from the other end where there are not enough."""
SLOTS = 512
"""Payloads that a channel of bounded size holds."""


def write_all(write: Write, *, count: int, size: int) -> None:
    """Send numbered payloads."""
    filling = bytes(size - NUMBER_BYTES)
    for number in range(count):
        payload = number.to_bytes(NUMBER_BYTES, "little") + filling
        while not write(payload):
            time.sleep(WAIT_S)


def read_all(read: Read, *, count: int, size: int) -> float:
    """Receive them; seconds from the first to the last."""
    start = 0.0
    for number in range(count):
        while (payload := read()) is None:
            time.sleep(WAIT_S)
        if number == 0:
            start = time.perf_counter()
        assert len(payload) == size and payload[:NUMBER_BYTES] == number.to_bytes(NUMBER_BYTES, "little"), number
    return time.perf_counter() - start


def iceoryx2_end(role: str, *, name: str, count: int, size: int) -> None:
    """One end of a publish-subscribe service whose publisher waits for room, so that nothing is lost."""
    import iceoryx2 as iox2  # pyright: ignore[reportMissingImports]

    iox2.set_log_level(iox2.LogLevel.Error)
    payload_type = ctypes.c_uint8 * size
    node = iox2.NodeBuilder.new().create(iox2.ServiceType.Ipc)
    service = (
        node.service_builder(iox2.ServiceName.new(name))
        .publish_subscribe(payload_type)
        .subscriber_max_buffer_size(SLOTS)
        .enable_safe_overflow(False)
        .open_or_create()
    )
    if role == "read":
        subscriber = service.subscriber_builder().create()

        def read() -> bytes | None:
            sample = subscriber.receive()
            return None if sample is None else ctypes.string_at(sample.payload_ptr, size)

        print(read_all(read, count=count, size=size), flush=True)
        return
    publisher = service.publisher_builder().create()
    while service.dynamic_config.number_of_subscribers == 0:
        time.sleep(0.01)

    def write(payload: bytes) -> bool:
        publisher.send_copy(payload_type.from_buffer_copy(payload))
        return True

    write_all(write, count=count, size=size)
    # What it has sent lies in its own memory: it must stay until all of it is read.
    while service.dynamic_config.number_of_subscribers:
        time.sleep(0.01)


def main() -> None:
    """Be one end."""
    role, name, count, size = sys.argv[1:]
    iceoryx2_end(role, name=name, count=int(count), size=int(size))


if __name__ == "__main__":
    main()
