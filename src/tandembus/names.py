"""How entities are named and addressed.

Here live `canonical`, the one form in which a path is compared, and `split`, which takes an address
from the wire apart. Which entities exist is `core/`'s affair.

The rule: any text becomes a canonical value or an `ArgumentError`, canonical values are of a fixed
ASCII alphabet, and no two entities share an address.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from tandembus import limits
from tandembus.errors import ArgumentError

DEAD_LETTER: Final = "$deadletterqueue"
TRANSFER: Final = "$transfer"
MANAGEMENT: Final = "$management"
SUBSCRIPTIONS: Final = "subscriptions"
DEFAULT_RULE: Final = "$default"

_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


@dataclass(frozen=True, slots=True)
class Address:
    """A path taken apart; every name in it is canonical."""

    entity: str
    """The queue's or topic's path."""
    subscription: str | None = None
    is_dead_letter: bool = False
    is_transfer_dead_letter: bool = False
    """Never true together with `is_dead_letter`."""
    is_management: bool = False

    @property
    def owner(self) -> str:
        """The queue, topic or subscription that all of this belongs to."""
        if self.subscription is None:
            return self.entity
        return f"{self.entity}/{SUBSCRIPTIONS}/{self.subscription}"

    @property
    def path(self) -> str:
        """The canonical path of what holds the messages (`is_management` does not show)."""
        if self.is_dead_letter:
            return f"{self.owner}/{DEAD_LETTER}"
        if self.is_transfer_dead_letter:
            return f"{self.owner}/{TRANSFER}/{DEAD_LETTER}"
        return self.owner


def canonical(path: str) -> str:
    """The one form in which a queue's or topic's path is compared, or `ArgumentError`.

    Letters, digits and `. - _ /`; ASCII only, so that no two texts look alike, no normal form is
    needed and lower case is one to one. The case of creation is kept elsewhere, for display.
    """
    if not path or len(path) > limits.MAX_ENTITY_NAME:
        raise _bad_path(path, f"a path has 1 to {limits.MAX_ENTITY_NAME} characters")
    folded = "/".join([_segment(segment, path) for segment in path.split("/")])
    # `topic/subscriptions` lists subscriptions, `topic/subscriptions/x` is one: as part of a
    # queue's own name the word would make two entities with one address. First, it can only be a
    # name.
    if f"/{SUBSCRIPTIONS}/" in f"{folded}/":
        raise _bad_path(path, "'subscriptions' can only be the first segment of a path")
    return folded


def canonical_subscription(name: str) -> str:
    """The one form in which a subscription's name is compared, or `ArgumentError`."""
    if len(name) > limits.MAX_SUBSCRIPTION_NAME:
        raise _bad_path(name, f"it has more than {limits.MAX_SUBSCRIPTION_NAME} characters")
    return _segment(name, name)


def canonical_rule(name: str) -> str:
    """The one form in which a rule's name is compared, or `ArgumentError`."""
    if _is_word(name, DEFAULT_RULE):
        return DEFAULT_RULE
    if len(name) > limits.MAX_RULE_NAME:
        raise _bad_path(name, f"it has more than {limits.MAX_RULE_NAME} characters")
    return _segment(name, name)


def split(address: str) -> Address:
    """Takes a link's address or an entity's path apart, or raises `ArgumentError`.

    An address may be a path, with or without a slash in front, or a URI with or without authority;
    it may be percent-encoded, once (.NET writes `Uri.AbsolutePath`). The known suffixes are taken
    from the right, without regard to case, then `/subscriptions/<name>`; the rest is the entity,
    slashes and all.
    """
    if len(address) > limits.MAX_ADDRESS:
        raise _bad_path(address, f"an address has at most {limits.MAX_ADDRESS} characters")
    segments = unquote(_without_authority(address).removeprefix("/")).split("/")
    is_management = _take(segments, MANAGEMENT)
    is_dead_letter = _take(segments, DEAD_LETTER)
    is_transfer = is_dead_letter and _take(segments, TRANSFER)
    subscription = None
    if len(segments) > 2 and _is_word(segments[-2], SUBSCRIPTIONS):
        subscription = canonical_subscription(segments[-1])
        del segments[-2:]
    return Address(
        entity=canonical("/".join(segments)),
        subscription=subscription,
        is_dead_letter=is_dead_letter and not is_transfer,
        is_transfer_dead_letter=is_transfer,
        is_management=is_management,
    )


def dead_letter_path(path: str) -> str:
    """The dead-letter queue of a queue or a subscription."""
    return f"{path}/$DeadLetterQueue"


def transfer_dead_letter_path(path: str) -> str:
    """The transfer dead-letter queue of a queue, a subscription or a topic: what could not be
    forwarded."""
    return f"{path}/$Transfer/$DeadLetterQueue"


def _segment(segment: str, path: str) -> str:
    if not segment:
        raise _bad_path(path, "a segment is empty")
    if not _LETTERS.issuperset(segment):
        raise _bad_path(path, "letters, digits and . - _ / are allowed")
    # The names never become file names; this is for the day when someone makes them so.
    if segment == "." or ".." in segment:
        raise _bad_path(path, "a segment is '.' or has '..' in it")
    return segment.lower()


def _take(segments: list[str], word: str) -> bool:
    if _is_word(segments[-1], word) and len(segments) > 1:
        segments.pop()
        return True
    return False


def _is_word(segment: str, word: str) -> bool:
    return segment.isascii() and segment.lower() == word


def _without_authority(address: str) -> str:
    scheme, colon, rest = address.partition(":/")
    if not colon or "/" in scheme:
        return address
    return rest[1:].partition("/")[2] if rest.startswith("/") else rest


def _bad_path(path: str, why: str) -> ArgumentError:
    shown = path if len(path) <= 64 else f"{path[:64]}…"
    return ArgumentError(f"SubCode=40000. {shown!a} is not a valid name for Service Bus: {why}.")
