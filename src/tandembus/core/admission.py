"""What may come into a queue: sizes, lengths, the quota, the memory for sessions.

The `check_…` functions raise the error that the client gets; nothing here changes state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tandembus import limits
from tandembus.changes import EntityKind
from tandembus.core.session_rows import MAX_COST, kept_bytes, key_of
from tandembus.errors import (
    ArgumentError,
    EntityDisabledError,
    MessageSizeExceededError,
    NotAllowedError,
    QuotaExceededError,
    Refused,
    SessionIdMissingError,
)
from tandembus.model import Message

if TYPE_CHECKING:
    from tandembus.core.book import Book
    from tandembus.core.queue import Queue
    from tandembus.core.sessions import Session


def check_send(queue: Queue, messages: Sequence[Message], *, is_batch: bool = False) -> int:
    """Raises if one of them cannot be taken, or if several as one batch are for more than one
    partition. Returns their size."""
    if queue.kind not in (EntityKind.QUEUE, EntityKind.TOPIC):
        raise NotAllowedError(f"Nothing can be sent to '{queue.path}': send to its queue or topic.")
    if not queue.takes_sends:
        raise EntityDisabledError(queue.path)
    sizes = [len(message.payload) for message in messages]
    if not queue.is_simple or max(sizes, default=0) > queue.max_message_bytes:
        for message in messages:
            try:
                check(queue, message)
            except Refused:
                if not message.is_ping:  # that needs no session id
                    raise
        if is_batch and len(queue.parts) > 1:
            _check_partition_keys(queue, messages)
    return sum(sizes)


def _check_partition_keys(queue: Queue, messages: Sequence[Message]) -> None:
    keys = {key_within(queue, each) for each in messages if not each.is_ping}
    if len(keys) > 1:
        shown = sorted("none" if key is None else f"'{key:.80}'" for key in keys)[:3]
        raise NotAllowedError(
            f"The messages of one batch have different partition keys ({', '.join(shown)}), and "
            f"'{queue.path}' is partitioned: all messages of a batch must have the same "
            "PartitionKey or SessionId. Send one batch for each key."
        )


def key_within(queue: Queue, message: Message) -> str | None:
    """What decides in which partition of a queue a message is: the same for ids of one session."""
    if queue.sessions is not None and message.session_id is not None:
        return key_of(message.session_id)
    return message.partition_key or message.session_id


def check(queue: Queue, message: Message) -> None:
    """Raises if this queue cannot take the message. Changes nothing."""
    size = len(message.payload)
    if size <= queue.max_message_bytes and queue.is_simple:
        return
    if size > queue.max_message_bytes:
        raise MessageSizeExceededError(
            f"The message of {size} bytes exceeds the limit of {queue.max_message_bytes} bytes "
            f"of '{queue.path}'."
        )
    if queue.sessions is not None or len(queue.parts) > 1:
        session_id = message.session_id
        if session_id is None and queue.sessions is not None:
            raise SessionIdMissingError
        partition_key = message.partition_key
        _check_length("SessionId", session_id, limits.MAX_SESSION_ID)
        _check_length("PartitionKey", partition_key, limits.MAX_PARTITION_KEY)
        if None not in (session_id, partition_key) and session_id != partition_key:
            text = "PartitionKey and SessionId must be the same when both are set."
            raise NotAllowedError(text)
    if queue.window_ms:
        message_id = message.message_id
        if isinstance(message_id, str):
            _check_length("MessageId", message_id, limits.MAX_MESSAGE_ID)


def check_room(queue: Queue, size: int) -> None:
    """Raises if `size` bytes more do not fit the quota."""
    if queue.used_bytes + size > queue.max_bytes:
        raise QuotaExceededError(
            "The maximum entity size has been reached or exceeded for "
            f"{queue.kind.name.title()}: '{queue.path}'. Size of entity in bytes:"
            f"{queue.used_bytes}, Max entity size in bytes:{queue.max_bytes}."
        )


def new_sessions(queue: Queue, messages: Iterable[Message]) -> dict[tuple[int, str], int]:
    """The sessions that these messages would begin, here or in the subscriptions of a topic, and
    the memory that each would take."""
    found: dict[tuple[int, str], int] = {}
    for each in (queue, *queue.subscriptions.values()):
        sessions = each.sessions
        if sessions is None:
            continue
        for message in messages:
            session_id = message.session_id
            if session_id is not None and not message.is_ping and session_id not in sessions:
                found[each.id, key_of(session_id)] = sessions.cost(session_id)
    return found


def check_sessions(queue: Queue, messages: Sequence[Message]) -> None:
    """Raises if the sessions that these messages would begin do not fit into the memory."""
    book = queue.book
    most = len(messages) * (1 + len(queue.subscriptions)) * MAX_COST
    if book.session_bytes + most > book.max_session_bytes:
        check_session_room(book, sum(new_sessions(queue, messages).values()))


def check_session_room(book: Book, size: int) -> None:
    """Raises if `size` bytes more do not fit into the memory for sessions."""
    if size > 0 and book.session_bytes + size > book.max_session_bytes:
        raise QuotaExceededError(
            "The maximum memory of the sessions of this namespace has been reached or exceeded. "
            f"Size of sessions in bytes:{book.session_bytes}, Max size of sessions in bytes:"
            f"{book.max_session_bytes}. Receive waiting session messages, clear session states, "
            "or raise --session-mb."
        )


def check_attach(queue: Queue, session_id: str) -> None:
    """Raises if a new session of this id does not fit. (From one that exists can always be
    received, because that frees memory.)"""
    _check_length("SessionId", session_id, limits.MAX_SESSION_ID)
    sessions = queue.sessions
    assert sessions is not None
    check_session_room(queue.book, sessions.cost(session_id) + kept_bytes(sessions.levels))


def check_state(queue: Queue, session: Session, state: bytes) -> None:
    """Raises if the session cannot keep this state."""
    if len(state) > limits.MAX_SESSION_STATE:
        raise MessageSizeExceededError(
            f"A session's state has at most {limits.MAX_SESSION_STATE} bytes."
        )
    assert queue.sessions is not None
    if session.state is None and len(queue.sessions.states) >= limits.MAX_SESSION_STATES:
        raise QuotaExceededError(
            f"'{queue.path}' has {limits.MAX_SESSION_STATES} states, the most it can keep."
        )
    check_session_room(queue.book, queue.sessions.state_cost(session, state))


def _check_length(name: str, value: str | None, most: int) -> None:
    if value is not None and len(value) > most:
        raise ArgumentError(f"{name} has {len(value)} characters; at most {most} are allowed.")
