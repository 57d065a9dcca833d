"""SASL over AMQP (§5.3): the two small machines that run before a connection is opened.

Here live the mechanisms of Service Bus as a server (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL) and the
two that a client of it needs (ANONYMOUS, PLAIN). Headers and frames live in `connection`; whether a
password is right is asked of the callable that the server was given.

The rule: every (state, frame) pair is in a table; what is not there ends the connection. A password
is in no event, no text of an error and no `repr`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final

from tandembus.amqp.performatives import (
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
)
from tandembus.errors import ProtocolError

PLAIN: Final = "PLAIN"
ANONYMOUS: Final = "ANONYMOUS"
EXTERNAL: Final = "EXTERNAL"
MSSBCBS: Final = "MSSBCBS"
"""Microsoft's name for "a token follows on $cbs"; the same as ANONYMOUS here."""

OK: Final = 0
AUTH_FAILED: Final = 1

CheckPlain = Callable[[str, str], bool]
"""(user name, password) → whether they belong together."""


class Step(Enum):
    """What a SASL machine waits for."""

    INIT = "init"
    RESPONSE = "response"
    MECHANISMS = "mechanisms"
    OUTCOME = "outcome"
    DONE = "done"
    FAILED = "failed"


class SaslServer:
    """The server's side: offers mechanisms, takes one init, gives one outcome."""

    __slots__ = ("_check_plain", "_mechanisms", "mechanism", "step", "username")

    def __init__(self, mechanisms: tuple[str, ...], check_plain: CheckPlain | None) -> None:
        self._check_plain = check_plain
        self._mechanisms = tuple(
            name for name in mechanisms if name != PLAIN or check_plain is not None
        )
        self.step = Step.INIT
        self.mechanism = ""
        self.username: str | None = None

    def opening(self) -> SaslMechanisms:
        return SaslMechanisms(self._mechanisms)

    def receive(self, frame: Any) -> SaslChallenge | SaslOutcome:
        """The answer to one frame of the client; `step` then says whether it is over."""
        match self.step, frame:
            case Step.INIT, SaslInit(mechanism=mechanism, initial_response=response):
                self.mechanism = str(mechanism)
                if self.mechanism not in self._mechanisms:
                    return self._outcome(False)
                if self.mechanism != PLAIN:
                    return self._outcome(True)
                if response is None:
                    self.step = Step.RESPONSE
                    return SaslChallenge(b"")
                return self._outcome(self._is_plain_right(response))
            case Step.RESPONSE, SaslResponse(response=response):
                return self._outcome(self._is_plain_right(response))
            case _:
                raise ProtocolError(f"{type(frame).__name__} is not what SASL waits for here.")

    def _outcome(self, is_right: bool) -> SaslOutcome:
        self.step = Step.DONE if is_right else Step.FAILED
        return SaslOutcome(OK if is_right else AUTH_FAILED)

    def _is_plain_right(self, response: bytes) -> bool:
        """RFC 4616: identity to act as NUL user name NUL password."""
        parts = response.split(b"\0")
        if len(parts) != 3 or self._check_plain is None:
            return False
        try:
            username, password = parts[1].decode(), parts[2].decode()
        except UnicodeDecodeError:
            return False
        if not self._check_plain(username, password):
            return False
        self.username = username
        return True


class SaslClient:
    """The client's side: PLAIN if it has a user name, else ANONYMOUS."""

    __slots__ = ("_hostname", "_response", "mechanism", "step", "username")

    def __init__(self, username: str | None, password: str, hostname: str | None) -> None:
        self._hostname = hostname
        self.username = username
        self.mechanism = ANONYMOUS if username is None else PLAIN
        self._response = b"" if username is None else f"\0{username}\0{password}".encode()
        self.step = Step.MECHANISMS

    def receive(self, frame: Any) -> SaslInit | SaslResponse | None:
        match self.step, frame:
            case Step.MECHANISMS, SaslMechanisms(sasl_server_mechanisms=offered):
                if self.mechanism not in offered:
                    self.step = Step.FAILED
                    return None
                self.step = Step.OUTCOME
                return SaslInit(self.mechanism, self._response, self._hostname)
            case Step.OUTCOME, SaslChallenge():
                return SaslResponse(self._response)
            case Step.OUTCOME, SaslOutcome(code=code):
                self.step = Step.DONE if code == OK else Step.FAILED
                return None
            case _:
                raise ProtocolError(f"{type(frame).__name__} is not what SASL waits for here.")
