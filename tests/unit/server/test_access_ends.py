"""Authorization does not outlive its reason (S10), and nobody without it learns or reaches more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tandembus.amqp import performatives as p
from tandembus.core import commands as c
from tandembus.core.access import Claims, Grant, Policy, Right, Secret, everything
from tandembus.core.sas import sign
from tandembus.model import NEVER
from tandembus.settings import AccessRight, AuthorizationRule, QueueSettings
from tests.unit.server.access_world import (
    ENTITY,
    LIFE_S,
    OTHER,
    PAYLOAD,
    ROLES,
    World,
    entity_rule,
    key_of,
    world,
)
from tests.unit.server.desk import encode_request
from tests.unit.server.visitor import UNAUTHORIZED, Refusal

ROOT = next(role for role in ROLES if role.name == "root")
HERE = next(role for role in ROLES if role.name == "Manage here")
ELSEWHERE = next(role for role in ROLES if role.name == "Manage elsewhere")
SEND = next(role for role in ROLES if role.name == "Send")


def scene(work: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with world() as where, asyncio.timeout(60):
            try:
                await work(where)
            finally:
                await where.see_off()

    asyncio.run(run())


async def update(where: World, path: str, *rules: AuthorizationRule) -> None:
    """As the administration client would."""
    command = c.UpdateEntity(path, QueueSettings(authorization_rules=rules))
    await where.broker.execute(command, everything())


def changed(name: str, key: str) -> list[AuthorizationRule]:
    """The rules of an entity, one of them with another first key."""
    return [
        entity_rule(each, rights, key if each == name else None) for each, rights in ENTITY.items()
    ]


# --- what rests on a key ends with it -------------------------------------------------------------


@pytest.mark.parametrize("how", ["removed", "rotated", "fewer rights", "deleted"])
@pytest.mark.parametrize("by", ["sas", "jwt", "plain"])
def test_links_end_with_their_rule(by: str, how: str) -> None:
    """The rule is removed, its key is another, it allows less, its entity is gone: the links that
    rested on it are detached before whoever did it has the answer. Those of others live on."""

    async def work(where: World) -> None:
        path = await where.queue()
        mine = await where.visit(HERE, path, by=by)
        theirs = await where.visit(ROOT, path)
        sender = await mine.attach(path, sends=True)
        receiver = await mine.attach(path, sends=False)
        stays = await theirs.attach(path, sends=True)
        match how:
            case "removed":
                await update(where, path)
            case "rotated":
                await update(where, path, *changed("here-manage", "another key of it".ljust(32)))
            case "fewer rights":
                listen = entity_rule("here-manage", [AccessRight.LISTEN])
                await update(where, path, listen)
            case "deleted":
                await where.broker.execute(c.DeleteEntity(path), everything())
        gone = (UNAUTHORIZED, "amqp:not-found") if how == "deleted" else (UNAUTHORIZED,)
        assert await mine.detached(sender) in gone
        if how != "fewer rights":
            assert await mine.detached(receiver) in gone
            with pytest.raises(Refusal, match=UNAUTHORIZED):
                await mine.attach(path, sends=False)
        if how != "deleted":
            await theirs.deliver(stays, PAYLOAD)

    scene(work)


def test_the_other_key_still_counts() -> None:
    """A token signed with the second key outlives the rotation of the first, and the other way
    round: that is what two keys are for."""

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.come()
        second = key_of("here-manage, the second")
        token = sign(f"sb://h/{path}", "here-manage", second, where.clock.now_ms() // 1000 + 60)
        await visitor.put_token(token, f"sb://h/{path}")
        link = await visitor.attach(path, sends=True)
        await update(where, path, *changed("here-manage", "another key of it".ljust(32)))
        await visitor.deliver(link, PAYLOAD)

    scene(work)


def test_a_new_entity_by_an_old_name_owes_nothing() -> None:
    """A token for a rule of an entity that was deleted is worth nothing on the next of that name,
    even if a rule of that name is there."""

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.visit(HERE, path)
        await where.do(c.DeleteEntity(path))  # by the broker itself, as when it was idle too long
        rules = tuple(changed("here-manage", "another key of it".ljust(32)))
        command = c.CreateQueue(path, QueueSettings(authorization_rules=rules))
        await where.broker.execute(command, everything())
        with pytest.raises(Refusal, match=UNAUTHORIZED):
            await visitor.attach(path, sends=True)

    scene(work)


def test_it_is_looked_at_even_if_whoever_asked_has_gone() -> None:
    """The request that removes a rule is cut off: the rule is gone, and so are its links."""

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.visit(HERE, path)
        link = await visitor.attach(path, sends=True)
        asked = asyncio.ensure_future(update(where, path))
        await asyncio.sleep(0)
        asked.cancel()
        assert await visitor.detached(link) == UNAUTHORIZED

    scene(work)


def test_other_policies_of_the_namespace() -> None:
    """As when the file is read again: a policy that is gone takes its links along, one that is
    still there keeps them, and the new one counts at once."""

    async def work(where: World) -> None:
        path = await where.queue()
        one, two = await where.visit(SEND, path), await where.visit(ROOT, path)
        goes, stays = await one.attach(path, sends=True), await two.attach(path, sends=True)
        root = Policy("root", Right.ALL, Secret("new".ljust(32)), Secret(key_of("root")))
        where.broker.replace_policies((root,), None)
        assert await one.detached(goes) == UNAUTHORIZED
        await two.deliver(stays, PAYLOAD)
        newcomer = await where.come("root", "new".ljust(32))
        await newcomer.attach(path, sends=True)

    scene(work)


def test_a_token_that_is_replaced_or_taken_back() -> None:
    """By one that allows less, or by nothing: what it no longer allows ends."""

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.visit(ROOT, path)
        sender = await visitor.attach(path, sends=True)
        receiver = await visitor.attach(path, sends=False)
        expires_s = where.clock.now_ms() // 1000 + 60
        less = sign(f"sb://h/{path}", "listen", key_of("listen"), expires_s)
        await visitor.put_token(less, f"sb://h/{path}")
        assert await visitor.detached(sender) == UNAUTHORIZED
        node = await visitor.node("$cbs")
        await visitor.ask(node, encode_request("delete-token", None, name=f"sb://h/{path}"))
        assert await visitor.detached(receiver) == UNAUTHORIZED

    scene(work)


def test_a_token_that_runs_out() -> None:
    """Commands are refused from that moment on, and the links end."""

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.visit(ROOT, path)
        sender = await visitor.attach(path, sends=True)
        await visitor.deliver(sender, PAYLOAD)
        where.clock.advance(LIFE_S * 1000)
        with pytest.raises(Refusal, match=UNAUTHORIZED):
            await visitor.deliver(sender, PAYLOAD)
        where.broker.review()
        assert await visitor.detached(sender) == UNAUTHORIZED

    scene(work)


def test_the_timer_follows_the_newest_token() -> None:
    """A token that is put later, and ends sooner, ends its links in time: nobody has to send
    anything for it. A link that only receives is the one that would not notice."""

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.visit(ROOT, path)
        link = await visitor.attach(path, sends=False)
        expires_s = where.clock.now_ms() // 1000 + 1
        short = sign(f"sb://h/{path}", "root", key_of("root"), expires_s)
        await visitor.put_token(short, f"sb://h/{path}")
        where.clock.advance(1_000)
        assert await visitor.detached(link) == UNAUTHORIZED

    scene(work)


# --- nobody learns or reaches more ----------------------------------------------------------------


@pytest.mark.parametrize("sends", [True, False])
@pytest.mark.parametrize("path", ["nowhere", "nowhere/$management", "nowhere/Subscriptions/s"])
def test_what_is_there_is_not_told_to_strangers(path: str, sends: bool) -> None:
    """Without a right on it, an entity that is not there is refused like one that is; with one on
    all, it is not found."""

    async def work(where: World) -> None:
        for visitor in (await where.come(), await where.visit(ELSEWHERE, OTHER)):
            with pytest.raises(Refusal, match=UNAUTHORIZED):
                await visitor.attach(path, sends=sends)
        known = await where.come("root", key_of("root"))
        with pytest.raises(Refusal, match="amqp:not-found"):
            await known.attach(path, sends=sends)

    scene(work)


@pytest.mark.req("T17")
def test_a_transaction_is_its_connection_s_own() -> None:
    """Numbers can be guessed, and are worth nothing: neither a send nor a settlement joins what
    another connection has declared."""

    async def work(where: World) -> None:
        path = await where.queue()
        await where.fill(path)
        one, two = await where.visit(ROOT, path), await where.visit(ROOT, path)
        coordinator, txn_id = await one.declare()
        link = await two.attach(path, sends=True)
        with pytest.raises(Refusal, match="does not exist"):
            await two.deliver(link, PAYLOAD, p.TransactionalState(txn_id))
        with pytest.raises(Refusal, match="does not exist"):
            await two.deliver(link, PAYLOAD, p.TransactionalState(b"\xff" * 32))
        receiver = await two.attach(path, sends=False)
        message = await two.receive(receiver)
        state = p.TransactionalState(txn_id, p.ACCEPTED)
        with pytest.raises(Refusal, match="does not exist"):
            await two.settle(receiver, message.delivery_id, state)
        other = await two.attach(p.Coordinator(), sends=True)
        with pytest.raises(Refusal, match="unknown-id"):
            await two.discharge(other, txn_id)
        await one.discharge(coordinator, txn_id)

    scene(work)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("root", "wrong".ljust(32)),
        ("nobody", key_of("root")),
        ("", ""),
        ("root", ""),
        ("root", key_of("root") + "\0"),
        ("here-manage", key_of("root")),
    ],
)
def test_plain_with_a_wrong_name_or_key(name: str, key: str) -> None:
    """SASL fails, and the connection is over; a rule's name with another policy's key too."""

    async def work(where: World) -> None:
        await where.queue()
        with pytest.raises(Refusal):
            await where.come(name, key)

    scene(work)


def test_plain_with_a_rule_of_an_entity() -> None:
    """The name and key of a rule count on the entities that have this rule with this key."""

    async def work(where: World) -> None:
        mine, another = await where.queue(), await where.queue()
        await update(where, another, *changed("here-manage", "another key of it".ljust(32)))
        visitor = await where.come("here-manage", key_of("here-manage"))
        await visitor.deliver(await visitor.attach(mine, sends=True), PAYLOAD)
        for path in (another, OTHER):
            with pytest.raises(Refusal, match=UNAUTHORIZED):
                await visitor.attach(path, sends=True)

    scene(work)


def test_forwarding_needs_a_right_on_the_target() -> None:
    """Whoever manages one entity cannot send to another one through it; the token that the SDKs put
    beside the request shows that he may (WIRE.md §10.1)."""
    body = (
        '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
        '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/'
        f'connect"><ForwardTo>{OTHER}</ForwardTo></QueueDescription></content></entry>'
    )

    async def work(where: World) -> None:
        path = await where.queue()
        with pytest.raises(Refusal, match="401"):
            await where.http(HERE, "PUT", path, body, If_Match="*")
        wrong = where.token(HERE, OTHER)
        with pytest.raises(Refusal, match="401"):
            await where.http(
                HERE, "PUT", path, body, If_Match="*", ServiceBusSupplementaryAuthorization=wrong
            )
        right = where.token(ELSEWHERE, OTHER)
        await where.http(
            HERE, "PUT", path, body, If_Match="*", ServiceBusSupplementaryAuthorization=right
        )

    scene(work)


def test_bearer_over_http() -> None:
    """A JWT in the header is judged as on $cbs."""

    async def work(where: World) -> None:
        path = await where.queue()
        nobody = ROLES[0]
        for role, status in ((ROOT, "200"), (HERE, "200"), (ELSEWHERE, "401"), (SEND, "401")):
            bearer = f"Bearer {where.jwt(role)}"
            try:
                answer = await where.http(nobody, "GET", path, Authorization=bearer)
                assert answer.split(" ")[1] == status
            except Refusal as refusal:
                if refusal.condition != status:
                    raise

    scene(work)


@pytest.mark.req("T1")
def test_what_the_protocol_refuses_leads_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A message that is too large never reaches the engine; its refusal has a tracking id that the
    log has too, and so has a broken rule that ends a link."""
    caplog.set_level("INFO", "tandembus.server")

    async def work(where: World) -> None:
        path = await where.queue()
        visitor = await where.visit(ROOT, path)
        link = await visitor.attach(path, sends=True)
        with pytest.raises(Refusal, match="message-size-exceeded") as refused:
            await visitor.deliver(link, bytes(2_000_000))
        tracking_id = str(refused.value).partition("TrackingId:")[2]
        assert len(tracking_id) == 36
        assert f"TrackingId:{tracking_id}" in caplog.text
        await visitor.deliver(link, PAYLOAD)
        too_large = bytes(2_000_000)
        link.deliver(b"settled", [too_large], settled=True)
        assert await visitor.detached(link) == "amqp:link:message-size-exceeded"
        assert caplog.text.count("TrackingId:") >= 2

    scene(work)


def test_an_empty_list_of_policies_lets_nobody_in() -> None:
    """Only a broker that was given none at all is open."""

    async def work(where: World) -> None:
        where.broker.replace_policies((), None)
        with pytest.raises(Refusal, match="401"):
            await where.http(ROOT, "GET", "$namespaceinfo")

    scene(work)


def test_a_grant_without_a_policy_is_not_reviewed() -> None:
    """What the broker does by itself, and a directory's JWT, rest on no policy's key."""

    async def work(where: World) -> None:
        claims = Claims({"": Grant("", Right.ALL, NEVER)})
        where.broker.authority.review(claims)
        assert claims.allows("x", Right.MANAGE, 0)

    scene(work)
