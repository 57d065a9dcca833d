"""What can be asked of a namespace. A command is a value; `Namespace.apply` decides about it.

A command is either done as a whole, and answered by `Outcome.reply`, or refused by an exception of
the `Refused` tree, and then nothing has changed. The type of the reply stands with each command.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from tandembus.changes import Mode
from tandembus.core.rules import Rule
from tandembus.core.state import State
from tandembus.model import NEVER, NO_EDITS, Edits, Message, Millis
from tandembus.settings import QueueSettings, SubscriptionSettings, TopicSettings


class NextSession(Enum):
    """Stands for "whichever session is free" where a session id could stand."""

    NEXT = "next available session"


NEXT_SESSION: Final = NextSession.NEXT


class Disposition(Enum):
    """What a receiver decides about a message that it has locked."""

    COMPLETE = "completed"
    ABANDON = "abandoned"
    DEFER = "defered"  # so spelled on the wire (WIRE.md §7)
    DEAD_LETTER = "suspended"
    RELEASE = "released"


# --- entities -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateQueue:
    path: str
    settings: QueueSettings = QueueSettings()
    origin: int = 0
    """The number before the first sequence number: only tests of the roll-over set it."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    path: str
    settings: TopicSettings = TopicSettings()


@dataclass(frozen=True, slots=True)
class CreateSubscription:
    topic: str
    name: str
    settings: SubscriptionSettings = SubscriptionSettings()
    rule: Rule | None = None
    """The first rule; None: `$Default`, which is true for every message."""


@dataclass(frozen=True, slots=True)
class UpdateEntity:
    path: str
    settings: QueueSettings | TopicSettings | SubscriptionSettings


@dataclass(frozen=True, slots=True)
class DeleteEntity:
    path: str


@dataclass(frozen=True, slots=True)
class AddRule:
    path: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """Another filter and action for the rule of that name, which must be there."""

    path: str
    rule: Rule


@dataclass(frozen=True, slots=True)
class RemoveRule:
    path: str
    name: str


# --- sending --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Send:
    """Store messages, all or none. A message with a time to come is scheduled.
    Reply: their sequence numbers, in order (0 for one that was dropped as a duplicate or a
    ping). With `each` it is a row of sends of their own, and the reply has the `Refused` of one
    that was refused in its place."""

    path: str
    messages: Sequence[Message]
    link: int = 0
    transaction: int | None = None
    each: bool = False
    sender: str = ""
    """Who sends, for the rate of each sender."""
    is_numbered: bool = False
    """In a transaction: what has a time to come is scheduled at once, so that its number can be
    told, and cancelled if the transaction is not committed."""
    via: str | None = None
    """The entity that takes the messages on their way to `path`, and keeps in its transfer
    dead-letter queue those that `path` refuses."""
    is_batch: bool = False
    """Whether they came in one transfer: then all must be for one partition."""


@dataclass(frozen=True, slots=True)
class CancelScheduled:
    path: str
    sequence_numbers: Sequence[int]
    transaction: int | None = None


# --- receiving ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attach:
    """Open a receiving link. Reply: `Attached`, or None when it waits for a session; then the
    effect `SessionGranted` or `LinkClosed` follows."""

    link: int
    path: str
    mode: Mode = Mode.PEEK_LOCK
    session: str | NextSession | None = None
    timeout_ms: Millis = 65_000


@dataclass(slots=True)
class Flow:
    """The link can take `credit` more messages (absolute, replaces what it had). With `drain`, what
    cannot be used at once is given up; the reply is the credit given up."""

    link: int
    credit: int
    nonce: int
    """64 random bits: the lock tokens of what is delivered on this credit are made from it."""
    drain: bool = False
    received: int | None = None
    """How many messages the link had got in all when it said so: what is on its way to it uses up
    credit too. None: it has got all."""


@dataclass(frozen=True, slots=True)
class Detach:
    """Close a link. Its locks stay (a session's end, without penalty)."""

    link: int


@dataclass(frozen=True, slots=True)
class ReceiveDeferred:
    """Receive deferred messages by number, all or none. Reply: tuple of `Delivery`."""

    path: str
    sequence_numbers: Sequence[int]
    nonce: int
    mode: Mode = Mode.PEEK_LOCK
    session: str | None = None
    link: int = 0


@dataclass(frozen=True, slots=True)
class Browse:
    """Look without locking. Reply: tuple of `Delivery` (without tokens), by sequence number."""

    path: str
    from_sequence_number: int = 0
    count: int = 1
    session: str | None = None
    states: Collection[State] = ()
    """Only messages in these; empty: in all."""


# --- reading by position (docs/wire-extensions.md) ------------------------------------------------


@dataclass(frozen=True, slots=True)
class Survey:
    """Where the messages of an entity lie. Reply: `positions.Lie`."""

    path: str
    since_ms: Millis | None = None
    """Also say from where on they were enqueued at this time or later."""


@dataclass(frozen=True, slots=True)
class Advance:
    """How far one gets from `start` with so many messages and bytes, but one at least. Reply:
    `positions.Stretch`. It may end earlier than asked: ask again from there."""

    path: str
    partition: int
    start: int
    end: int
    max_count: int = NEVER
    max_bytes: int = NEVER


@dataclass(frozen=True, slots=True)
class Scan:
    """Look at messages in a row, all that is there but scheduled ones. Reply: `positions.Rows`."""

    path: str
    partition: int
    start: int
    end: int
    max_count: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class MoveCursor:
    """Say how far a reader of that name has come; never back. The first time only the position is
    kept; after that, with `removes`, the messages that it has passed are removed as completed,
    whoever holds them, but scheduled ones. Reply: how far it has come; it may be less than asked,
    because a command removes a bounded number: ask again."""

    path: str
    name: str
    partition: int
    position: int
    removes: bool = False


@dataclass(frozen=True, slots=True)
class OpenTap:
    """A cursor that holds back what it has not passed: whoever completes or deletes such a message,
    it can still be scanned, for a time. Opened again, it keeps its place and takes the new time."""

    path: str
    name: str
    retention_ms: Millis


@dataclass(frozen=True, slots=True)
class DropCursor:
    path: str
    name: str


# --- settling -------------------------------------------------------------------------------------


@dataclass(slots=True)
class Settle:
    """Decide about locked messages, all or none (one lost lock refuses the whole command). With
    `each` it is a row of decisions of their own; the reply is None when all were carried out, else
    the `Refused` or None of each.

    Not `is_awaited`: who asks has settled already and waits for no answer. So it needs no sync of
    its own; a crash within the next tenth of a second may bring the messages back."""

    path: str
    tokens: Sequence[bytes]
    disposition: Disposition
    edits: Edits = NO_EDITS
    reason: str | None = None
    description: str | None = None
    transaction: int | None = None
    each: bool = False
    is_awaited: bool = True
    delay_ms: Millis = 0
    """Of what is abandoned or released: so long it is for nobody. Then it is in its old place."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Reply: the new end of the locks, one `Millis` each."""

    path: str
    tokens: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class DeleteMessages:
    """Delete up to `count` of the oldest waiting messages enqueued before a time. Reply: how
    many."""

    path: str
    count: int
    before_ms: Millis
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Discard:
    """Delete messages by number, all or none; one that somebody has locked is not there for it."""

    path: str
    sequence_numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class Reactivate:
    """Have deferred or delayed messages wait again, all or none: each in its place, with its number
    and its delivery count."""

    path: str
    sequence_numbers: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChangePriority:
    """Give a waiting message another level."""

    path: str
    sequence_number: int
    level: int


# --- sessions -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RenewSession:
    """Reply: the new end of the session's lock."""

    path: str
    session: str
    link: int


@dataclass(frozen=True, slots=True)
class SetSessionState:
    path: str
    session: str
    state: bytes | None
    link: int
    transaction: int | None = None


@dataclass(frozen=True, slots=True)
class GetSessionState:
    """Reply: the state, or None."""

    path: str
    session: str
    link: int


@dataclass(frozen=True, slots=True)
class ListSessions:
    """Reply: tuple of session ids by name. `updated_after_ms` None: those with active messages or a
    state; otherwise those whose state was set after it."""

    path: str
    updated_after_ms: Millis | None = None
    skip: int = 0
    top: int = 100


@dataclass(frozen=True, slots=True)
class CountSessions:
    """Reply: `SessionCounts`."""

    path: str


@dataclass(frozen=True, slots=True)
class DeadLetterSession:
    """Move a session's messages to the dead-letter queue, up to `count` of the oldest; those that
    are scheduled stay. By whoever holds the session (`link`), or by anybody while nobody does.
    Reply: how many; fewer than `count`: that was all."""

    path: str
    session: str
    link: int = 0
    reason: str | None = None
    description: str | None = None
    count: int = 1_000


# --- transactions ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Declare:
    """Reply: the number of the new transaction."""

    owner: int = 0
    """Whose it is: what all transactions of one owner hold in memory has a bound."""


@dataclass(frozen=True, slots=True)
class Discharge:
    """End a transaction: all of it, or nothing."""

    transaction: int
    fail: bool = False


# --- the engine's own -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """The answer to the effect `Load`: the stored messages, read and parsed."""

    entity: int
    messages: Mapping[int, Message]
    """By sequence number."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Put a `Note` into the log (a poll, a management call): nothing else changes."""

    path: str
    note: int
    number: int = 0


Command: TypeAlias = (
    CreateQueue
    | CreateTopic
    | CreateSubscription
    | UpdateEntity
    | DeleteEntity
    | AddRule
    | UpdateRule
    | RemoveRule
    | Send
    | CancelScheduled
    | Attach
    | Flow
    | Detach
    | ReceiveDeferred
    | Browse
    | Survey
    | Advance
    | Scan
    | MoveCursor
    | OpenTap
    | DropCursor
    | Settle
    | Renew
    | DeleteMessages
    | Discard
    | Reactivate
    | ChangePriority
    | RenewSession
    | SetSessionState
    | GetSessionState
    | ListSessions
    | CountSessions
    | DeadLetterSession
    | Declare
    | Discharge
    | Loaded
    | Remark
)
