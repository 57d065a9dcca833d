"""The delaying proxy: the same bytes in the same order, later."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tandembus.testing import DelayingProxy


@pytest.fixture
def echo() -> Iterator[int]:
    """A port that sends back what it gets, until the other side is done."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                accepted, _ = listening.accept()
            except OSError:
                return
            with accepted:
                while data := accepted.recv(65_536):
                    accepted.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listening.getsockname()[1]
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


def test_bytes_come_later_and_in_order(echo: int) -> None:
    """Never before the round trip is over; many may be under way."""
    with (
        DelayingProxy(echo, 40, "127.0.0.1") as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), 30) as client,
    ):
        began = time.monotonic()
        sent = b"".join(b"%06d" % number for number in range(2_000))
        for at in range(0, len(sent), 500):
            client.sendall(sent[at : at + 500])
        got = client.recv(1)
        assert time.monotonic() - began >= 0.039
        while len(got) < len(sent):
            got += client.recv(65_536)
        assert got == sent


def test_a_target_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        DelayingProxy(port, 1, "127.0.0.1") as proxy,
        socket.create_connection(("127.0.0.1", proxy.port), 30) as client,
        contextlib.suppress(ConnectionResetError),
    ):
        assert client.recv(1) == b""


def test_an_end_is_passed_on(echo: int) -> None:
    """Who hangs up is heard at the other end."""
    with DelayingProxy(echo, 10, "127.0.0.1") as proxy:
        client = socket.create_connection(("127.0.0.1", proxy.port), 30)
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        client.shutdown(socket.SHUT_WR)
        assert client.recv(1) == b""
        client.close()
