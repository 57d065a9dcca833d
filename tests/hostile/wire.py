"""A client that can misbehave: the client's end of AMQP on a socket, and the raw bytes beneath."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from tandembus.amqp.connection import Connection, Role
from tandembus.amqp.events import Closed, Event, LinkAttached, LinkDetached, LinkFlow, Opened
from tandembus.amqp.frames import frame
from tandembus.amqp.link import Link
from tandembus.amqp.performatives import Source, encode_performative
from tandembus.amqp.performatives import Target as Node
from tandembus.testing.process import ROOT

PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under attack."""

    port: int
    key: str
    has_tls: bool = False
    host: str = "127.0.0.1"


class Hung(Exception):
    """The broker hung up."""


def framed(performative: Any, channel: int = 0) -> bytes:
    return frame(encode_performative(performative), channel)


def connected(target: Target, *, seconds: float = PATIENCE_S) -> socket.socket:
    sock = socket.create_connection((target.host, target.port), timeout=seconds)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def trusting() -> ssl.SSLContext:
    """A client's TLS that believes every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def over_tls(plain: socket.socket) -> ssl.SSLSocket:
    try:
        return trusting().wrap_socket(plain, server_hostname="localhost")
    except BaseException:
        plain.close()
        raise


class Wire:
    """Blocking; events are kept in `events`."""

    def __init__(self, target: Target, *, tls: bool = False, known: bool = True) -> None:
        plain = connected(target)
        self.socket: socket.socket = over_tls(plain) if tls else plain
        self.connection = Connection(
            Role.CLIENT,
            container_id="hostile",
            idle_timeout_ms=None,
            username=ROOT if known else None,
            password=target.key,
        )
        self.events: list[Event] = []
        self.last_words = b""
        """What the broker said last in a storm."""

    @classmethod
    def opened(cls, target: Target, *, tls: bool = False, known: bool = True) -> Self:
        wire = cls(target, tls=tls, known=known)
        try:
            wire.open()
        except BaseException:
            wire.close()
            raise
        return wire

    def open(self) -> None:
        self.connection.open()
        self.talk(lambda: any(isinstance(event, Opened) for event in self.events))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, without a word."""
        self.socket.close()

    def flush(self) -> None:
        for data in self.connection.data_to_send():
            self.socket.sendall(data)

    def talk(self, until: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        """Write and read until it is so. Raises Hung, or TimeoutError."""
        end = time.monotonic() + seconds
        while not until():
            self.flush()
            if until():
                return
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError("the broker did not answer in time")
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65_536)
            except (ConnectionError, ssl.SSLError) as error:
                raise Hung(str(error)) from None
            if not data:
                raise Hung("the broker hung up")
            self.events += self.connection.receive_data(data)
            self.flush()

    def hear(self, seconds: float = PATIENCE_S) -> None:
        """Until something has come."""
        count = len(self.events)
        self.talk(lambda: len(self.events) > count, seconds)

    def attach(self, address: str, *, is_sender: bool, name: str = "", **how: Any) -> Link:
        """A link that is there; raises Hung if it was refused."""
        session = self.connection.sessions[0] if self.connection.sessions else None
        session = session or self.connection.begin()
        link = session.attach(
            name or f"{address}-{is_sender}-{len(self.events)}",
            is_sender=is_sender,
            source=Source("here" if is_sender else address, **how),
            target=Node(address if is_sender else "here"),
        )

        def decided() -> bool:
            for event in self.events:
                if isinstance(event, LinkDetached) and event.link is link:
                    raise Hung(f"{address}: {event.error}")
            return any(isinstance(it, LinkAttached) and it.link is link for it in self.events)

        self.talk(decided)
        if is_sender:
            self.talk(lambda: any(isinstance(e, LinkFlow) and e.link is link for e in self.events))
        return link

    @property
    def closed_with(self) -> str | None:
        """The condition with which the broker closed the connection."""
        for event in self.events:
            if isinstance(event, Closed) and event.error is not None:
                return event.error.condition
        return None


def is_hung_up(sock: socket.socket, seconds: float = 5.0) -> bool:
    """Whether the broker hangs up in this time; what it says meanwhile is read over."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            if not sock.recv(65_536):
                return True
        except TimeoutError:
            return False
        except OSError:
            return True
    return False


def storm(wire: Wire, block: bytes, until: float, *, per_second: int | None = None) -> int:
    """Write `block` again and again, and read over what comes; how many were written whole.

    Ends at `until`, or when the broker hangs up; what it said last is in `wire.last_words`.
    """
    sock = wire.socket
    sock.setblocking(False)
    written = 0
    rest = memoryview(block)
    last = b""
    began = time.monotonic()
    while (now := time.monotonic()) < until:
        is_due = per_second is None or written <= (now - began) * per_second
        readable, writable, _ = select.select([sock], [sock] if is_due else [], [], 0.01)
        try:
            if readable:
                data = sock.recv(262_144)
                if not data:
                    break
                last = (last + data)[-4_096:]
            if writable:
                rest = rest[sock.send(rest) :]
                if not rest:
                    rest = memoryview(block)
                    written += 1
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            continue
        except OSError:
            break
    wire.last_words = last
    return written
