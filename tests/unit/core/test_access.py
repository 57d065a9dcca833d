"""Who may do what, before any road leads here."""

from __future__ import annotations

import pytest

from tandem.core import commands as c
from tandem.core.access import (
    Authority,
    Claims,
    Grant,
    Policy,
    Right,
    Secret,
    everything,
    path_of,
    require,
    right_for,
)
from tandem.core.sas import parse, sign
from tandem.errors import UnauthorizedError
from tandem.model import NEVER
from tandem.settings import AccessRight, AuthorizationRule

NOW = 1_700_000_000_000
SOON = NOW // 1000 + 60
ROOT = Policy("root", Right.MANAGE, Secret("key one"), Secret("key two"))
READER = Policy("reader", Right.LISTEN, Secret("r1"), Secret("r2"))
OWN = Policy("own", Right.SEND, Secret("o1"), Secret("o2"))


def authority() -> Authority:
    return Authority([ROOT, READER], lambda path: [OWN] if path == "orders" else [])


def test_a_token_grants_the_rights_of_its_policy() -> None:
    """With either key; Manage includes the others; for the path that was asked for."""
    for key in ("key one", "key two"):
        token = sign("sb://host/orders", "root", key, SOON)
        grant = authority().grant(token, "sb://host/Orders/$management", NOW)
        assert grant == Grant("orders/$management", Right.ALL, SOON * 1000)
    listening = authority().grant(sign("sb://host/", "reader", "r1", SOON), "sb://host/orders", NOW)
    assert listening.rights == Right.LISTEN


@pytest.mark.parametrize(
    ("resource", "name", "key", "expires"),
    [
        ("sb://host/orders", "root", "wrong", SOON),
        ("sb://host/orders", "nobody", "key one", SOON),
        ("sb://host/orders", "", "0" * 44, SOON),
        ("sb://host/orders", "root", "key one", NOW // 1000),
        ("sb://host/other", "root", "key one", SOON),
        ("sb://host/order", "root", "key one", SOON),
    ],
)
def test_tokens_that_prove_nothing(resource: str, name: str, key: str, expires: int) -> None:
    """Wrong key, unknown name, no name, expired, for another path, for half a name."""
    with pytest.raises(UnauthorizedError):
        authority().grant(sign(resource, name, key, expires), "sb://host/orders", NOW)


def test_an_entity_has_policies_of_its_own() -> None:
    """They count there and nowhere else."""
    token = sign("sb://host/", "own", "o1", SOON)
    assert authority().grant(token, "sb://host/orders", NOW).rights == Right.SEND
    with pytest.raises(UnauthorizedError):
        authority().grant(token, "sb://host/others", NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "jwt.like.text",
        "SharedAccessSignature ",
        "SharedAccessSignature sr=a&sig=b",
        "SharedAccessSignature sr=a&sig=!!&se=1&skn=k",
        "SharedAccessSignature sr=a&sig=YQ==&se=1.5&skn=k",
        "SharedAccessSignature sr=a&sig=YQ==&se=١&skn=k",
        "SharedAccessSignature sr=a&sr=b&sig=YQ==&se=1&skn=k",
        "SharedAccessSignature " + "x" * 5000,
    ],
)
def test_malformed_tokens(text: str) -> None:
    with pytest.raises(UnauthorizedError):
        parse(text)


def test_every_order_and_escaping() -> None:
    """JS puts the fields in another order; a live test of Python's SDK does not escape at all."""
    token = sign("sb://host/a b", "root", "key one", SOON)
    fields = token.removeprefix("SharedAccessSignature ").split("&")
    turned = "SharedAccessSignature " + "&".join(reversed(fields))
    assert authority().grant(turned, "sb://host/a b", NOW).rights == Right.ALL
    assert parse(token.replace("skn=root", "skn=ro%256Ft")).key_name == "root"


def test_claims_end() -> None:
    """A right is gone the moment its token is over, and a new token replaces the old one."""
    claims = Claims()
    claims.add(Grant("orders", Right.SEND, NOW + 10))
    assert claims.allows("orders", Right.SEND, NOW + 9)
    assert not claims.allows("orders", Right.SEND, NOW + 10)
    assert not claims.allows("orders", Right.LISTEN, NOW)
    assert not claims.allows("orders2", Right.SEND, NOW)
    assert claims.allows("orders/$deadletterqueue", Right.SEND, NOW)
    claims.add(Grant("orders", Right.LISTEN, NOW + 20))
    assert not claims.allows("orders", Right.SEND, NOW)
    assert claims.next_expiry() == NOW + 20
    assert everything().next_expiry() == NEVER


def test_commands_are_checked() -> None:
    """A command that the claims do not cover is refused, and the text says what is missing."""
    claims = Claims()
    claims.add(Grant("orders", Right.LISTEN, NEVER))
    require(claims, c.Attach(1, "Orders"), NOW)
    require(claims, c.Flow(1, 1, 0), NOW)
    with pytest.raises(UnauthorizedError, match="'Send' claim"):
        require(claims, c.Send("orders", []), NOW)
    with pytest.raises(UnauthorizedError, match="'Manage' claim"):
        require(claims, c.CreateSubscription("orders", "s"), NOW)
    require(everything(), c.CreateQueue("x"), NOW)
    assert right_for(c.Browse("orders")) == Right.LISTEN


def test_a_rule_of_an_entity_is_a_policy() -> None:
    """Its keys sign, its rights count."""
    rule = AuthorizationRule(
        "own", (AccessRight.SEND, AccessRight.LISTEN), Secret("k1"), Secret("k2")
    )
    policy = Policy.of(rule)
    assert policy == Policy("own", Right.SEND | Right.LISTEN, Secret("k1"), Secret("k2"))
    of_entity = Authority([], lambda path: [policy])
    token = sign("sb://host/q", "own", "k2", SOON)
    assert of_entity.grant(token, "sb://host/q", NOW).rights == Right.SEND | Right.LISTEN


def test_keys_do_not_show_themselves() -> None:
    """Not in a repr, not in a format, not in the repr of what holds them."""
    assert "key one" not in f"{ROOT} {ROOT.primary_key!r} {ROOT.primary_key}"


@pytest.mark.parametrize(
    "resource", ["sb://h/a/B", "https://h:5300/a/b/", "amqps://h/A/b", "a/b", "/a/b"]
)
def test_scheme_host_and_case_do_not_count(resource: str) -> None:
    assert path_of(resource) == "a/b"
