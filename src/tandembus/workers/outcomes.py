"""What becomes of a message when its handler has ended.

A handler returns one of these values, or nothing, which is `Complete`. An exception is judged by
`Worker.outcome_of`: a `PermanentError`, or a kind that the worker names, goes to the dead-letter
queue; all others are abandoned, to be tried again, until the broker's MaxDeliveryCount ends that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tandembus.errors import TandemError


class PermanentError(TandemError):
    """Raised by a handler: trying again would not help. Its message goes to the dead-letter
    queue."""

    def __init__(self, reason: str, description: str = "") -> None:
        super().__init__(f"{reason}: {description}" if description else reason)
        self.reason = reason
        self.description = description

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.reason, self.description)


@dataclass(frozen=True, slots=True)
class Complete:
    """Done."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """To be tried again; its delivery count rises."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    reason: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Defer:
    """Only its sequence number leads to it from now on."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Back to its place in the queue, as if it had not been received, and with `state` for whoever
    receives it next (`Work.state`). What a handler that was asked to stop returns (P6)."""

    state: bytes | None = None


Outcome: TypeAlias = Complete | Abandon | DeadLetter | Defer | GiveBack
