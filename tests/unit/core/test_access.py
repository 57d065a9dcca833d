"""Who may do what, before any road leads here."""

from __future__ import annotations

import base64

import pytest

from tandembus.core import commands as c
from tandembus.core.access import (
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
from tandembus.core.sas import parse, sign
from tandembus.errors import UnauthorizedError
from tandembus.model import NEVER
from tandembus.settings import AccessRight, AuthorizationRule, QueueSettings, SubscriptionSettings

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


def test_a_resource_without_a_scheme() -> None:
    """The host alone is the whole namespace; what is not the host is a path."""
    for resource in ("host:5671", "HOST:5671/", "host:5671/orders"):
        token = sign(resource, "root", "key one", SOON)
        assert authority().grant(token, "sb://host:5671/orders", NOW).rights == Right.ALL
    for resource in ("others", "other.host", "host:5671/others"):
        token = sign(resource, "root", "key one", SOON)
        with pytest.raises(UnauthorizedError):
            authority().grant(token, "sb://host:5671/orders", NOW)


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


def test_a_full_connection_makes_room() -> None:
    """Tokens that have run out do not count against what a connection can hold."""
    claims = Claims({str(n): Grant(str(n), Right.SEND, NOW + 10) for n in range(1_024)})
    with pytest.raises(UnauthorizedError):
        claims.add(Grant("more", Right.SEND, NOW + 20), NOW)
    claims.add(Grant("7", Right.LISTEN, NOW + 20), NOW)
    claims.add(Grant("more", Right.SEND, NOW + 20), NOW + 10)
    assert set(claims.grants) == {"7", "more"}
    assert claims.is_anybody(NOW + 19)
    assert not claims.is_anybody(NOW + 20)


def test_a_right_covers_what_is_below() -> None:
    """By whole segments, and never upwards."""
    claims = Claims()
    claims.add(Grant("a/b", Right.SEND, NEVER))
    for path, is_allowed in {"a/b": 1, "a/b/c": 1, "a/b/c/d": 1, "a/bc": 0, "a": 0, "": 0}.items():
        assert claims.allows(path, Right.SEND, NOW) == bool(is_allowed)
    claims.add(Grant("a/b/c", Right.LISTEN, NEVER))
    assert claims.allows("a/b/c", Right.SEND, NOW), "from above"
    assert claims.allows_some("a/b/c", NOW)
    assert not claims.allows_some("a", NOW)


def test_forwarding_takes_a_right_on_the_target() -> None:
    """Of the entity, and of its dead letters; Manage on the source alone is not enough."""
    claims = Claims()
    claims.add(Grant("q", Right.ALL, NEVER))
    claims.add(Grant("open", Right.SEND, NEVER))
    for settings in (
        QueueSettings(forward_to="target"),
        QueueSettings(forward_dead_letters_to="target"),
        QueueSettings(forward_to="open", forward_dead_letters_to="Target"),
    ):
        with pytest.raises(UnauthorizedError, match="'Send' claim"):
            require(claims, c.CreateQueue("q", settings), NOW)
        with pytest.raises(UnauthorizedError, match="'Send' claim"):
            require(claims, c.UpdateEntity("q", settings), NOW)
    require(claims, c.CreateQueue("q", QueueSettings(forward_to="Open")), NOW)
    subscription = SubscriptionSettings(forward_to="target")
    with pytest.raises(UnauthorizedError, match="'Send' claim"):
        require(claims, c.CreateSubscription("q", "s", subscription), NOW)


def test_declaring_takes_any_right() -> None:
    """A transaction is about no entity, but a stranger has no place in the table of them."""
    with pytest.raises(UnauthorizedError):
        require(Claims(), c.Declare(), NOW)
    require(Claims({"q": Grant("q", Right.LISTEN, NOW + 1)}), c.Declare(), NOW)
    with pytest.raises(UnauthorizedError):
        require(Claims({"q": Grant("q", Right.LISTEN, NOW)}), c.Declare(), NOW)


def test_login() -> None:
    """A policy's name and key (SASL PLAIN): everywhere for one of the namespace, there for one of
    an entity; nothing for anything else."""
    who = authority()
    assert who.login("root", "key two") == [Grant("", Right.ALL, NEVER)]
    assert who.login("reader", "r1") == [Grant("", Right.LISTEN, NEVER)]
    assert who.login("own", "o1", ["Orders", "others"]) == [Grant("orders", Right.SEND, NEVER)]
    for name, key in (("root", "r1"), ("own", "o1"), ("", "0" * 44), ("", ""), ("nobody", "o1")):
        assert who.login(name, key) == []


def test_review() -> None:
    """What rests on a key that is gone is taken back, and what the policy no longer allows; a
    grant of another key, and one that rests on none, stay."""
    who = authority()
    claims = Claims({"free": Grant("free", Right.SEND, NEVER)})
    for grant in (*who.login("root", "key one"), *who.login("own", "o2", ["orders"])):
        claims.add(grant)
    who.review(claims)
    assert set(claims.grants) == {"free", "", "orders"}
    weaker = Policy("root", Right.LISTEN, Secret("key one"), Secret("key three"))
    who.replace([weaker])
    who.review(claims)
    assert claims.grants[""].rights == Right.LISTEN
    who.replace([Policy("root", Right.ALL, Secret("key four"), Secret("key three"))])
    who.review(claims)
    assert set(claims.grants) == {"free", "orders"}


@pytest.mark.parametrize("name", ["root", "reader", "nobody", "own", ""])
def test_every_comparison_is_of_digests_and_their_number_does_not_tell(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Signatures and keys are compared by `hmac.compare_digest` on 32 bytes against 32, as often
    for a name that no policy has as for one that is there (S11)."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, two: bytes) -> bool:
        compared.append((len(one), len(two)))
        return one == two

    monkeypatch.setattr("hmac.compare_digest", compare)
    with pytest.raises(UnauthorizedError):
        authority().grant(sign("sb://h/orders", name, "wrong", SOON), "sb://h/orders", NOW)
    assert compared == [(32, 32)] * 4
    compared.clear()
    assert not authority().login(name, "wrong")
    assert compared == [(32, 32)] * 2


def test_a_signature_of_another_length_is_malformed() -> None:
    """So that every comparison is of equal lengths."""
    for size in (0, 1, 31, 33, 64):
        signature = base64.b64encode(bytes(size)).decode()
        with pytest.raises(UnauthorizedError, match="malformed"):
            parse(f"SharedAccessSignature sr=a&sig={signature}&se=1&skn=k")


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
    (grant,) = authority().login("root", "key one")
    token = parse(sign("sb://host/orders", "root", "key one", SOON))
    shown = f"{ROOT} {ROOT.primary_key!r} {ROOT.primary_key} {grant!r} {token!r}"
    assert "key one" not in shown
    assert base64.b64encode(token.signature).decode() not in shown
    assert repr(token.signature) not in shown


@pytest.mark.parametrize(
    "resource", ["sb://h/a/B", "https://h:5300/a/b/", "amqps://h/A/b", "a/b", "/a/b"]
)
def test_scheme_host_and_case_do_not_count(resource: str) -> None:
    assert path_of(resource) == "a/b"
