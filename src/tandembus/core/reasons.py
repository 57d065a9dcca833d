"""Why the broker dead-letters a message: every reason that it gives, in one place.

The value is what a receiver reads in `DeadLetterReason`; docs/dead-letters.md has the table of when
each occurs. A receiver that dead-letters a message gives a reason of its own, which is any text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from tandembus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    MessageSizeExceededError,
    QuotaExceededError,
    Refused,
    SessionIdMissingError,
)


class DeadLetterReason(StrEnum):
    """The words of Azure Service Bus, where it documents them: its system reasons, and the failure
    reasons of its client libraries for what a target of forwarding refuses."""

    MAX_DELIVERY_COUNT_EXCEEDED = "MaxDeliveryCountExceeded"
    TTL_EXPIRED = "TTLExpiredException"
    HEADER_SIZE_EXCEEDED = "HeaderSizeExceeded"
    FILTER_EVALUATION_FAILED = "FilterEvaluationException"
    SESSION_ID_IS_NULL = "Session ID is null."
    MAX_TRANSFER_HOP_COUNT_EXCEEDED = "MaxTransferHopCountExceeded"
    MESSAGING_ENTITY_NOT_FOUND = "MessagingEntityNotFound"
    MESSAGING_ENTITY_DISABLED = "MessagingEntityDisabled"
    MESSAGE_SIZE_EXCEEDED = "MessageSizeExceeded"
    QUOTA_EXCEEDED = "QuotaExceeded"
    TRANSFER_REFUSED = "TransferRefused"


_BY_ERROR: Final[tuple[tuple[type[Refused], DeadLetterReason], ...]] = (
    (SessionIdMissingError, DeadLetterReason.SESSION_ID_IS_NULL),
    (EntityNotFoundError, DeadLetterReason.MESSAGING_ENTITY_NOT_FOUND),
    (EntityDisabledError, DeadLetterReason.MESSAGING_ENTITY_DISABLED),
    (MessageSizeExceededError, DeadLetterReason.MESSAGE_SIZE_EXCEEDED),
    (QuotaExceededError, DeadLetterReason.QUOTA_EXCEEDED),
)


def reason_of(error: Refused) -> DeadLetterReason:
    """The reason of a message whose target refuses it with this error."""
    for kind, reason in _BY_ERROR:
        if isinstance(error, kind):
            return reason
    return DeadLetterReason.TRANSFER_REFUSED
