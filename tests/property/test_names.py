"""Paths and addresses, for any text: one canonical form, no two entities with one address."""

from __future__ import annotations

import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandembus import limits
from tandembus.errors import ArgumentError
from tandembus.names import (
    Address,
    canonical,
    canonical_rule,
    canonical_subscription,
    split,
)

ALPHABET = string.ascii_letters + string.digits + ".-_"

segments = st.text(ALPHABET, min_size=1, max_size=12).filter(
    lambda text: text != "." and ".." not in text
)
paths = (
    st.lists(segments, min_size=1, max_size=5)
    .filter(lambda parts: "subscriptions" not in [part.lower() for part in parts[1:]])
    .map("/".join)
)
words = st.sampled_from(
    [
        "subscriptions",
        "Subscriptions",
        "$DeadLetterQueue",
        "$Transfer",
        "$management",
        "",
        ".",
        "..",
    ]
)
shaped = st.lists(st.one_of(segments, words, st.text(max_size=4)), max_size=7).map("/".join)
anything = st.one_of(st.text(max_size=300), shaped, shaped.map("amqps://host:5671/".__add__))


def _recased(text: str, upper: list[bool]) -> str:
    flags = upper * (len(text) // max(len(upper), 1) + 1)
    return "".join(c.upper() if flag else c.lower() for c, flag in zip(text, flags, strict=False))


@settings(max_examples=500)
@given(anything)
@example("\u212a")  # the Kelvin sign: its lower case is an ASCII k
@example("caf\u00e9")
@example("\u0130")  # dotted capital I: lower case has two characters
@example("a" * 261)
@example("a/./b")
@example("a\x00b")
@example("a/subscriptions")
def test_canonical_is_idempotent_and_plain(text: str) -> None:
    """Any text has one canonical form in the fixed alphabet, or gets an ArgumentError."""
    try:
        form = canonical(text)
    except ArgumentError:
        return
    assert canonical(form) == form
    assert form == text.lower()
    assert len(form) <= limits.MAX_ENTITY_NAME
    assert set(form) <= set(string.ascii_lowercase + string.digits + ".-_/")
    assert ".." not in form
    assert "" not in form.split("/")


@given(paths, st.lists(st.booleans(), min_size=1))
def test_case_never_matters(path: str, upper: list[bool]) -> None:
    """Two spellings of one name are one entity."""
    assert canonical(_recased(path, upper)) == canonical(path)


@given(paths, paths)
def test_different_names_never_collide(one: str, other: str) -> None:
    """Canonical forms are equal exactly when the names are, but for case."""
    assert (canonical(one) == canonical(other)) == (one.lower() == other.lower())


@settings(max_examples=500)
@given(anything)
@example("$cbs")
@example("$management")
@example("$DeadLetterQueue")
@example("amqps://host")
@example("amqps://host/")
@example("a/subscriptions/b/subscriptions/c")
def test_any_address_splits_or_is_refused(text: str) -> None:
    """Any text is an address with canonical parts, or an ArgumentError; the parts say it again."""
    try:
        address = split(text)
    except ArgumentError:
        return
    assert canonical(address.entity) == address.entity
    if address.subscription is not None:
        assert canonical_subscription(address.subscription) == address.subscription
    assert not (address.is_dead_letter and address.is_transfer_dead_letter)
    again = split(address.path + ("/$management" if address.is_management else ""))
    assert again == address


addresses = st.builds(
    Address,
    entity=paths.map(str.lower),
    subscription=st.none() | segments.map(str.lower),
    is_management=st.booleans(),
)
suffixes = st.sampled_from(["", "/$DeadLetterQueue", "/$Transfer/$DeadLetterQueue"])
hosts = st.sampled_from(["", "amqps://h/", "amqp://h:5672/", "sb://ns.servicebus.windows.net/"])


@given(addresses, suffixes, hosts, st.lists(st.booleans(), min_size=1))
def test_every_way_to_write_an_address(
    address: Address, suffix: str, host: str, upper: list[bool]
) -> None:
    """Built from the left in any case and with any host, taken apart from the right to the same."""
    text = address.owner + suffix + ("/$management" if address.is_management else "")
    found = split(host + _recased(text, upper))
    assert (found.entity, found.subscription) == (address.entity, address.subscription)
    assert found.is_management == address.is_management
    assert found.is_dead_letter == (suffix == "/$DeadLetterQueue")
    assert found.is_transfer_dead_letter == (suffix == "/$Transfer/$DeadLetterQueue")


@given(addresses, addresses)
def test_no_two_entities_share_an_address(one: Address, other: Address) -> None:
    """Different entities or subscriptions never have one path."""
    same = (one.entity, one.subscription) == (other.entity, other.subscription)
    assert (one.owner == other.owner) == same


@given(st.text(max_size=60))
@example("$Default")
@example("a" * 51)
def test_subscription_and_rule_names(text: str) -> None:
    """At most 50 characters, no slash, idempotent; `$Default` is a rule's name only."""
    for check in (canonical_subscription, canonical_rule):
        try:
            form = check(text)
        except ArgumentError:
            continue
        assert check(form) == form
        assert len(form) <= 50
        assert "/" not in form
        assert "$" not in form or (check is canonical_rule and form == "$default")


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("q", Address("q")),
        ("amqps://host:5671/txt/.-_123", Address("txt/.-_123")),
        ("T/Subscriptions/S", Address("t", "s")),
        ("t/subscriptions/s/$deadletterqueue", Address("t", "s", is_dead_letter=True)),
        ("q/$Transfer/$DeadLetterQueue", Address("q", is_transfer_dead_letter=True)),
        (
            "Q/$DeadLetterQueue/$management",
            Address("q", is_dead_letter=True, is_management=True),
        ),
        ("ns/x-servicebus-transfer/0", Address("ns/x-servicebus-transfer/0")),
        ("subscriptions", Address("subscriptions")),
        ("subscriptions/Subscriptions/s", Address("subscriptions", "s")),
        ("a/b/subscriptions/c", Address("a/b", "c")),
        ("/q", Address("q")),
        ("a%2fb", Address("a/b")),
    ],
)
def test_addresses_of_the_wire(text: str, address: Address) -> None:
    """The forms that the official clients send."""
    assert split(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "//q", "q/", "a//b", "..", "a/..", "a/../b", "a..b", ".", "a b", "a\\b", "a?b",
        "a#b", "ä", "a%252fb", "q\n", "$DeadLetterQueue", "q/$Transfer", "q/$other",
        "t/subscriptions",
        "t/subscriptions/", "t/subscriptions/a/subscriptions/b", "x" * 261, "x" * 2000,
        "t/subscriptions/" + "s" * 51,
    ],
)  # fmt: skip
def test_addresses_that_are_none(text: str) -> None:
    """Each odd name is refused, with the sub code of a bad path."""
    with pytest.raises(ArgumentError, match="SubCode=40000"):
        split(text)
