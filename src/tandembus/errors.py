"""Every error that Tandem raises, in one tree.

    TandemError
    ├── ProtocolError                 bytes that are not what the protocol allows
    ├── StoreError                    the log cannot be written or read; ends the process
    │   ├── CorruptLogError           a checksum or a length is wrong; says segment and offset
    │   └── StoreInUseError           another process owns the data folder
    ├── ConnectionLostError           to a client: the way to the broker went, outcomes are unknown
    └── Refused                       a command that was understood and is refused
        ├── ArgumentError             a bad value                     (FilterError: a bad SQL text)
        ├── NotAllowedError           the entity does not do that     (session and non-session, …)
        │   └── SessionIdMissingError     it requires sessions, and the message names none
        ├── EntityNotFoundError, EntityExistsError, EntityDisabledError
        ├── MessageSizeExceededError, QuotaExceededError
        ├── MessageLockLostError, SessionLockLostError, SessionCannotBeLockedError
        ├── MessageNotFoundError, TransactionUnknownError
        ├── OperationTimeoutError
        ├── ServerBusyError           the broker is                   (ThrottledError: a rate)
        ├── UnauthorizedError
        ├── RemoteError               to a client: refused for a reason that has no class here
        └── PartlySettledError        to a client: some of several messages were not settled

Each class knows its AMQP condition, its HTTP status, and whether a retry can succeed; the edges
only copy them. A `Refused` never changes any state; a `StoreError` always ends the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar


class TandemError(Exception):
    """Root of the tree."""

    condition: ClassVar[str] = "amqp:internal-error"
    status: ClassVar[int] = 500
    is_retryable: ClassVar[bool] = False


class ProtocolError(TandemError):
    """The peer sent bytes that AMQP 1.0 (or our limits) do not allow."""

    condition = "amqp:decode-error"
    status = 400


class StoreError(TandemError):
    """The log cannot be written or read. Memory may be ahead of the disk: the process must end."""


class CorruptLogError(StoreError):
    """Stored bytes fail their check. Never served, never skipped: the namespace stops and says
    where."""

    def __init__(self, what: str, *, segment: str, offset: int) -> None:
        super().__init__(f"{what} in {segment} at offset {offset}; run `tandem store check`")
        self.what = what
        self.segment = segment
        self.offset = offset

    def __reduce__(self) -> tuple[object, ...]:
        """An exception with keyword arguments would not come through a process pool otherwise."""
        return partial(type(self), segment=self.segment, offset=self.offset), (self.what,)


class StoreInUseError(StoreError):
    """Another process has the data folder open."""


class ConnectionLostError(TandemError):
    """The connection or the link is gone. What was under way may have happened, or not: a message
    that is sent again may be there twice."""

    condition = "amqp:connection:forced"
    status = 503
    is_retryable = True


class Refused(TandemError):
    """A command that was understood and is refused. Nothing was changed."""


class ArgumentError(Refused):
    condition = "com.microsoft:argument-error"
    status = 400


class FilterError(ArgumentError):
    """A SQL filter or action that cannot be parsed, or that failed while it was evaluated."""


class NotAllowedError(Refused):
    condition = "amqp:not-allowed"
    status = 400


class SessionIdMissingError(NotAllowedError):
    """A message without a session id was sent to an entity that requires sessions."""

    def __init__(self) -> None:
        super().__init__(
            "Session enabled entity doesn't allow a message whose session identifier is null."
        )


class UnauthorizedError(Refused):
    condition = "amqp:unauthorized-access"
    status = 401


class EntityNotFoundError(Refused):
    condition = "amqp:not-found"
    status = 404

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' could not be found.")


class EntityExistsError(Refused):
    condition = "com.microsoft:entity-already-exists"
    status = 409

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' already exists.")


class EntityDisabledError(Refused):
    condition = "com.microsoft:entity-disabled"
    status = 403

    def __init__(self, path: str) -> None:
        super().__init__(f"The messaging entity '{path}' is currently disabled.")


class MessageSizeExceededError(Refused):
    condition = "amqp:link:message-size-exceeded"
    status = 413


class QuotaExceededError(Refused):
    condition = "amqp:resource-limit-exceeded"
    status = 403


class MessageLockLostError(Refused):
    condition = "com.microsoft:message-lock-lost"
    status = 410

    def __init__(self) -> None:
        super().__init__(
            "The lock supplied is invalid. Either the lock expired, or the message has already "
            "been removed from the queue."
        )


class SessionLockLostError(Refused):
    condition = "com.microsoft:session-lock-lost"
    status = 410

    def __init__(self, session_id: str) -> None:
        super().__init__(f"The lock on the session '{session_id}' has expired or was never held.")


class SessionCannotBeLockedError(Refused):
    condition = "com.microsoft:session-cannot-be-locked"
    status = 409
    is_retryable = True

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"The requested session '{session_id}' cannot be accepted. "
            "It may be locked by another receiver."
        )


class MessageNotFoundError(Refused):
    condition = "com.microsoft:message-not-found"
    status = 404

    def __init__(self, sequence_number: int) -> None:
        super().__init__(f"No message with sequence number {sequence_number} is in that state.")


class TransactionUnknownError(Refused):
    condition = "amqp:transaction:unknown-id"
    status = 404


class OperationTimeoutError(Refused):
    condition = "com.microsoft:timeout"
    status = 408
    is_retryable = True


class ServerBusyError(Refused):
    """Back-pressure: too much is waiting for the disk, or the disk is nearly full. Try again
    later."""

    condition = "com.microsoft:server-busy"
    status = 503
    is_retryable = True

    def __init__(self, why: str, *, retry_after_ms: int = 2_000) -> None:
        super().__init__(f"{why} Please wait {retry_after_ms / 1000:g} seconds and try again.")
        self.retry_after_ms = retry_after_ms


class ThrottledError(ServerBusyError):
    """More than the rate that an entity was given for everybody, a sender or a tenant (P10)."""

    status = 429

    def __init__(self, path: str, rate: str, *, retry_after_ms: int) -> None:
        why = (
            f"The request was terminated because the entity is being throttled: '{path}' takes "
            f"{rate}. Error code: 50009."
        )
        super().__init__(why, retry_after_ms=retry_after_ms)


class RemoteError(Refused):
    """What a client was told by its broker, and no other class stands for."""

    def __init__(self, said: str, text: str) -> None:
        super().__init__(f"{text} ({said})")
        self.said = said
        """The condition, as the broker gave it."""
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.said, self.text)


class PartlySettledError(Refused):
    """Some of several messages could not be settled; the others are."""

    def __init__(self, failures: Sequence[tuple[Any, TandemError]]) -> None:
        super().__init__(f"{len(failures)} messages were not settled; the first: {failures[0][1]}")
        self.failures = list(failures)
        """Which message, and why."""

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.failures,)
