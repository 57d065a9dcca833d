"""What a peer says went wrong, as an error of our tree.

The rule: the class is the condition's (WIRE.md §8), the text is the peer's, tracking id and all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tandembus import errors
from tandembus.amqp.performatives import RETRY_AFTER, Error
from tandembus.errors import ConnectionLostError, RemoteError, ServerBusyError, TandemError

_CLASSES: Final[dict[str, type[TandemError]]] = {
    cls.condition: cls
    for cls in (
        errors.ArgumentError,
        errors.NotAllowedError,
        errors.UnauthorizedError,
        errors.EntityNotFoundError,
        errors.EntityExistsError,
        errors.EntityDisabledError,
        errors.MessageSizeExceededError,
        errors.QuotaExceededError,
        errors.MessageLockLostError,
        errors.SessionLockLostError,
        errors.SessionCannotBeLockedError,
        errors.MessageNotFoundError,
        errors.OperationTimeoutError,
        errors.ServerBusyError,
    )
} | {
    "com.microsoft:auth-failed": errors.UnauthorizedError,
    # The broker ends a link or a connection for reasons of its own; opening it again helps.
    "amqp:link:detach-forced": ConnectionLostError,
    "amqp:connection:forced": ConnectionLostError,
}
_STATUSES: Final = {
    400: "com.microsoft:argument-error",
    401: "amqp:unauthorized-access",
    404: "amqp:not-found",
    408: "com.microsoft:timeout",
    409: "com.microsoft:entity-already-exists",
    429: "com.microsoft:server-busy",
    503: "com.microsoft:server-busy",
}
RETRY_AFTER_MS: Final = 2_000
"""Where a busy broker says no time."""


def refusal(condition: str, text: str, info: Mapping[Any, object] | None = None) -> TandemError:
    """The error of a condition, with the peer's own text."""
    cls = _CLASSES.get(condition)
    if cls is None:
        return RemoteError(condition, text)
    # Past the constructors: they make up texts, and this one is given.
    error = cls.__new__(cls, text)
    if isinstance(error, ServerBusyError):
        said = (info or {}).get(RETRY_AFTER)
        error.retry_after_ms = said if isinstance(said, int) else RETRY_AFTER_MS
    return error


def status_refusal(
    status: int, condition: str | None, text: str, info: Mapping[Any, object] | None = None
) -> TandemError:
    """Of a reply to a request, or of HTTP: the condition counts, if there is one."""
    said = condition or _STATUSES.get(status)
    return RemoteError(f"status {status}", text) if said is None else refusal(said, text, info)


def failure(error: Error | None, what: str) -> TandemError:
    """Of a link, a session or a connection that the peer has ended."""
    if error is None:
        return ConnectionLostError(f"{what} was ended by the peer, which said no reason.")
    text = error.description or f"{what}: {error.condition}"
    return refusal(str(error.condition), text, error.info)


def unknown(cause: TandemError) -> ConnectionLostError:
    """Of what was under way on a link that ended: it may have happened, or not."""
    if isinstance(cause, ConnectionLostError):
        return cause
    return ConnectionLostError(f"The outcome is unknown, because the link ended: {cause}")
