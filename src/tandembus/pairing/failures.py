"""What an exception of the SDK means for a pair, and the exceptions of the pair itself.

The rule (N4): what says that the entity cannot take sends now starts the timer. What says that this
message, this caller or this moment is wrong never does: authorisation, size, throttling, an entity
that is not there, a bad argument.

    ServiceBusError (the SDK's root)
    ├── MessageSizeExceededError
    │   └── BacklogMessageSizeError   fits the limit, but not with what a backlog message carries
    ├── BacklogUnavailableError       failed over, and no backlog queue takes the message
    └── PairFaultedError              one side ended, and the syphon faulted the other
"""

from __future__ import annotations

from typing import Final

from azure.servicebus import exceptions as sdk

FAILURES: Final = (sdk.ServiceBusError, OSError)
"""All that a send through the SDK raises because of the other side. (A time-out is an OSError.)"""

UNREACHABLE: Final = (
    sdk.ServiceBusConnectionError,
    sdk.ServiceBusCommunicationError,
    sdk.OperationTimeoutError,
    OSError,
)
"""Those of them that say that there is no answer."""

_NEVER: Final = (
    sdk.ServiceBusAuthenticationError,
    sdk.ServiceBusAuthorizationError,
    sdk.MessageSizeExceededError,
    sdk.ServiceBusServerBusyError,
    sdk.MessagingEntityNotFoundError,
)

_CALLERS_FAULT: Final = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:invalid-field",
        "amqp:decode-error",
        "amqp:precondition-failed",
        "amqp:link:message-size-exceeded",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
        "com.microsoft:precondition-failed",
    }
)
"""Conditions of a plain `ServiceBusError` that speak of the message, not of the entity."""


class BacklogMessageSizeError(sdk.MessageSizeExceededError):
    """A message that fits the limit only without the properties that it needs on its way through a
    backlog queue (N7). Nothing of the call was sent."""


class BacklogUnavailableError(sdk.ServiceBusError):
    """The entity has failed over, and no backlog queue is left that takes its messages (N5)."""


class PairFaultedError(sdk.ServiceBusError):
    """The other namespace of the pair was closed or faulted, so this one was faulted too (N10)."""


def condition_of(error: BaseException) -> str | None:
    """The AMQP condition behind an error, if the SDK kept it."""
    condition = getattr(error, "_condition", None)
    return None if condition is None else str(getattr(condition, "value", condition))


def starts_timer(error: BaseException) -> bool:
    """Whether this failure of a send says that the entity is unavailable (N4)."""
    if isinstance(error, _NEVER) or not isinstance(error, FAILURES):
        return False
    return not is_message_refused(error)


def is_message_refused(error: BaseException) -> bool:
    """Whether it is the message that is refused, so that no other time and no retry helps it."""
    if isinstance(error, sdk.MessageSizeExceededError):
        return True
    return isinstance(error, sdk.ServiceBusError) and condition_of(error) in _CALLERS_FAULT


def brief(error: BaseException) -> str:
    """One line for a log or a status page."""
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
