"""One connection of the blocking client: a socket, TLS and a lock around a conversation.

The rule: the thread that waits reads the socket, for all who wait; the others sleep until it has
read something. While nobody waits, a thread of its own keeps the connection alive, takes what comes
and renews the tokens.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from tandembus.amqp.types import Buffer
from tandembus.client.addresses import ConnectionString
from tandembus.client.conversation import Conversation
from tandembus.client.pending import Pending
from tandembus.client.tls import lost, tls_context
from tandembus.clock import Clock
from tandembus.errors import ConnectionLostError
from tandembus.limits import KIB

T = TypeVar("T")

_READ_BYTES: Final = 256 * KIB
_LONGEST_WAIT_S: Final = 20.0
"""The clock's time and the selector's drift apart, so a long wait is looked at again."""


class Line:
    """One connection: a socket and its conversation."""

    def __init__(
        self, target: ConnectionString, clock: Clock, timeout_s: float, ca_file: str | None
    ) -> None:
        self._target = target
        self._clock = clock
        self.heart = Conversation(target, clock, timeout_ms=int(timeout_s * 1000))
        self._socket = self._connected(timeout_s, ca_file)
        self._turn = threading.Condition()
        self._is_led = False
        """A thread is reading, for everybody."""
        self._is_poked = False
        self._unsent: deque[memoryview] = deque()
        self._over = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        for each in (self._socket, self._wake, self._woken):
            each.setblocking(False)
        self._keeper = threading.Thread(target=self._keep, name="tandem-client", daemon=True)
        try:
            self.run(self.heart.open())
        except BaseException:
            self._release()
            raise
        self._keeper.start()

    def _connected(self, timeout_s: float, ca_file: str | None) -> socket.socket:
        target = self._target
        try:
            plain = socket.create_connection((target.host, target.amqp_port), timeout_s)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if not target.uses_tls:
                    return plain
                return tls_context(ca_file).wrap_socket(plain, server_hostname=target.host)
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            raise lost(error, target.host, target.amqp_port) from None

    # --- what is waited for -----------------------------------------------------------------------

    def run(self, operation: Coroutine[Pending[Any], None, T]) -> T:
        """Start an operation, and wait for its result."""
        with self._turn:
            return self._wait(self.heart.run(operation))

    def wait(self, pending: Pending[T]) -> T:
        with self._turn:
            return self._wait(pending)

    def _wait(self, pending: Pending[T]) -> T:
        try:
            self._write()
            if not pending.is_done and self._is_led:
                self._poke()  # there may be more to write now, or an earlier deadline
            while not pending.is_done:
                if self._is_led:
                    self._turn.wait(_LONGEST_WAIT_S)
                else:
                    self._lead()
                    self._write()
        except BaseException:
            pending.cancel()
            raise
        return pending.result()

    def call(self, function: Callable[[], T]) -> T:
        """Do what needs no waiting, and hand over what it has queued."""
        with self._turn:
            value = function()
            self._write()
            return value

    # --- the socket; with the lock ----------------------------------------------------------------

    def _lead(self) -> None:
        """Wait for the socket or a deadline, while others may use the client."""
        delay_s = self._delay_s()
        self._is_led = True
        self._turn.release()
        try:
            self._selector.select(delay_s)
        finally:
            self._turn.acquire()
            self._is_led = False
            self._turn.notify_all()
        self._read()
        self._tick()

    def _delay_s(self) -> float:
        deadline = self.heart.next_deadline()
        if deadline is None:
            return _LONGEST_WAIT_S
        return min(_LONGEST_WAIT_S, max(0, deadline - self._clock.now_ms()) / 1000)

    def _tick(self) -> None:
        deadline = self.heart.next_deadline()
        if deadline is not None and deadline <= self._clock.now_ms():
            self.heart.tick()

    def _write(self) -> None:
        """As much as the socket takes. More is only asked for when all before is gone: then bulk
        sends go on encoding."""
        while not self._over.is_set():
            if not self._unsent:
                self._unsent.extend(_view(each) for each in self.heart.data_to_send())
                if not self._unsent:
                    break
            chunk = self._unsent[0]
            try:
                count = self._socket.send(chunk)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                break
            except OSError as error:
                self._lose(error)
                return
            if count == len(chunk):
                self._unsent.popleft()
            else:
                self._unsent[0] = chunk[count:]
        if not self._over.is_set():
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
            if self._selector.get_key(self._socket).events != wanted:
                self._selector.modify(self._socket, wanted)
                if self._is_led:
                    self._poke()

    def _read(self) -> None:
        if self._is_poked:
            self._is_poked = False
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(64)
        while not self._over.is_set():
            try:
                data = self._socket.recv(_READ_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._lose(error)
                return
            if not data:
                self._lose(ConnectionResetError("The broker has hung up."))
                return
            self.heart.receive_data(data)
            if not self._target.uses_tls:
                return  # what is left in the socket, the selector will tell

    def _poke(self) -> None:
        self._is_poked = True
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"\0")

    def _lose(self, error: OSError) -> None:
        self.heart.lose(lost(error, self._target.host, self._target.amqp_port))
        self._turn.notify_all()

    def _keep(self) -> None:
        """Heartbeats, renewals and what comes in, while no call does it."""
        delay_s = 0.0
        while not self._over.wait(delay_s):
            with self._turn:
                if not self._is_led:
                    self._read()
                    self._tick()
                    self._write()
                    self._turn.notify_all()
                delay_s = max(0.05, min(self._delay_s(), 5.0))
                if self.heart.is_over:
                    return

    # --- the end ----------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.heart.is_over

    def close(self) -> None:
        try:
            if not self.heart.is_over:
                self.run(self.heart.close())
        finally:
            self._release()

    def _release(self) -> None:
        with self._turn:
            if self._over.is_set():
                return
            self._over.set()
            self.heart.lose(ConnectionLostError("The connection is closed."))
            self._turn.notify_all()
            self._poke()
            while self._is_led:
                self._turn.wait(1)
            self._selector.close()
            for each in (self._socket, self._wake, self._woken):
                each.close()
        if self._keeper.is_alive() and self._keeper is not threading.current_thread():
            self._keeper.join()


def _view(data: Buffer) -> memoryview:
    return data if isinstance(data, memoryview) else memoryview(data)
