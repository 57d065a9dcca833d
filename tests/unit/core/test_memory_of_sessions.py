"""A session that only waits is a row, and all of them together have a bound (FA8)."""

from __future__ import annotations

import gc
import tracemalloc
from base64 import b85decode
from dataclasses import replace
from random import Random
from zlib import decompress

import pytest

from tandembus.core.commands import (
    Attach,
    Command,
    CreateQueue,
    Declare,
    DeleteEntity,
    Detach,
    Discharge,
    Flow,
    GetSessionState,
    ListSessions,
    Send,
    SetSessionState,
    UpdateEntity,
)
from tandembus.core.namespace import Namespace
from tandembus.core.rules import SqlFilter
from tandembus.core.session_rows import MAX_COST
from tandembus.errors import (
    ArgumentError,
    NotAllowedError,
    QuotaExceededError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)
from tandembus.model import Message
from tandembus.settings import PrioritySettings, QueueSettings
from tests.unit.core.world import START, World, message, numbers, rule

BATCH = 1_000
ROOM = 100_000


def _batches(count: int, size: int = BATCH) -> list[list[Message]]:
    return [
        [message("x", session_id=f"session-{number}") for number in range(first, first + size)]
        for first in range(0, count, size)
    ]


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _session_bytes(world: World | Namespace) -> int:
    namespace = world.namespace if isinstance(world, World) else world
    return namespace.entities[0].book.session_bytes


@pytest.mark.req("T14")
@pytest.mark.req("T21")
@pytest.mark.parametrize(
    ("settings", "count", "messages", "most"),
    [
        (QueueSettings(), 100_000, 1, 240),
        (QueueSettings(), 20_000, 2, 330),
        (QueueSettings(priority=PrioritySettings(levels=3)), 20_000, 1, 280),
        (QueueSettings(default_ttl_ms=60_000), 20_000, 1, 250),
    ],
    ids=["one message", "two messages", "with levels", "with a life"],
)
def test_fa8_bytes_a_waiting_session(
    settings: QueueSettings, count: int, messages: int, most: int
) -> None:
    """What core keeps of a session with its messages, and that what it counts for the session is
    no less than what it takes."""
    namespace = Namespace()
    settings = QueueSettings(
        requires_session=True, default_ttl_ms=settings.default_ttl_ms, priority=settings.priority
    )
    namespace.apply(CreateQueue("q", settings), START)
    batches = _batches(count) * messages
    tracemalloc.start()
    before = _traced()
    for batch in batches:
        namespace.apply(Send("q", batch), START)
    del batch, batches
    taken = _traced() - before
    tracemalloc.stop()
    assert taken / count <= most
    assert _session_bytes(namespace) >= taken - messages * count * 64
    sessions = namespace.find("q").sessions
    assert sessions is not None
    assert len(sessions) == sessions.available == count
    assert sessions.kept == []


@pytest.mark.req("T14")
@pytest.mark.req("T21")
def test_fa8_memory_returns() -> None:
    """After all is received nothing is left, not even the room; and numbers are used again."""
    world = World()
    world.queue("q", requires_session=True)
    namespace, sessions = world.namespace, world["q"].sessions
    assert sessions is not None
    tracemalloc.start()
    namespace.apply(Send("q", [message("x", session_id="first")]), world.now)
    before = _traced()
    for batch in _batches(20_000):
        namespace.apply(Send("q", batch), world.now)
    del batch
    full = _traced() - before
    highest = max(session.number for session in sessions)
    assert world.namespace.entities[0].book.session_bytes > 0
    every = numbers(world["q"].browse(0, 20_001, None))
    world["q"].remove_all(every[1:])
    namespace.freed.clear()
    del every
    left = _traced() - before
    tracemalloc.stop()
    assert left < full / 10
    assert [session.id for session in sessions] == ["first"]
    assert sessions.available == 1
    for batch in _batches(20_000):
        namespace.apply(Send("q", batch), world.now)
    assert max(session.number for session in sessions) <= highest
    world.delete("q")
    world.queue("r")
    assert _session_bytes(world) == 0


def _fill(world: World) -> int:
    """Sessions of two messages until one is refused. How many there are."""
    count = 0
    while True:
        first = message("x", session_id=f"session-{count}")
        reply = world.do(Send("q", [first, first], each=True))[0]
        if isinstance(reply, QuotaExceededError):
            assert reply.condition == "amqp:resource-limit-exceeded"
            assert "--session-mb" in str(reply)
            return count
        count += 1


@pytest.mark.req("T14")
@pytest.mark.req("T21")
def test_fa8_refused_beyond_the_bound(lived: World) -> None:
    """A message that would begin a session is refused; what was accepted is there, sessions that
    exist take more, and when one has ended there is room again, also after a restart."""
    lived.queue("q", requires_session=True)
    lived.queue("plain")
    lived.namespace.limit_sessions(ROOM)
    count = _fill(lived)
    assert 300 < count < ROOM // 100
    lived.lull()
    lived.namespace.limit_sessions(ROOM)
    new = message("x", session_id="one more")
    lived.refused(QuotaExceededError, Send("q", [new]), "Max size of sessions in bytes:100000")
    lived.send("q", "more", session_id="session-7")
    lived.send("plain", "x", session_id="one more")
    known = message("known", session_id="session-8")
    lived.refused(QuotaExceededError, Send("q", [known, new]))
    replies = lived.do(Send("q", [known, new], each=True))
    assert isinstance(replies[1], QuotaExceededError)
    assert lived["q"].active_count == 2 * count + 2
    lived.lull()
    lived.namespace.limit_sessions(ROOM)
    for number in range(3):
        accepted = lived.accept_session("q")
        assert accepted.session_id == f"session-{number}"
        lived.complete("q", *lived.take(accepted.link, 9))
        lived.detach(accepted.link)
    lived.do(Send("q", [new]))
    lived.lull()
    listed: list[str] = []
    while page := lived.do(ListSessions("q", skip=len(listed), top=100)):
        listed += page
    assert sorted(listed) == sorted(["one more", *(f"session-{n}" for n in range(3, count))])


@pytest.mark.req("T21")
def test_fa8_a_transaction_is_refused_as_a_whole(world: World) -> None:
    world.queue("q", requires_session=True)
    _short_of(world, MAX_COST)
    transaction = world.do(Declare())
    for number in range(100):
        name = f"{number:0>128}"
        world.do(Send("q", [message("t", session_id=name)], transaction=transaction))
    count = len(world.browse("q", count=1_000))
    world.refused(QuotaExceededError, Discharge(transaction, False))
    assert len(world.browse("q", count=1_000)) == count


def _short_of(world: World, room: int) -> None:
    """Some sessions, and room for that many bytes more."""
    for number in range(10):
        world.send("q", "x", session_id=f"session-{number}")
    world.namespace.limit_sessions(_session_bytes(world) + room)


@pytest.mark.req("T21")
def test_fa8_through_a_topic_or_forwarded(world: World) -> None:
    """A topic refuses what would begin a session in a subscription; what an action or forwarding
    would begin is dead-lettered."""
    world.topic("t")
    world.subscription("t", "s", requires_session=True)
    world.send("t", "known", session_id="known")
    world.queue("q", requires_session=True)
    world.queue("f", forward_to="q")
    world.namespace.limit_sessions(_session_bytes(world))
    world.refused(QuotaExceededError, Send("t", [message("x", session_id="new")]))
    world.send("t", "again", session_id="known")
    world.send("f", "on", session_id="new")
    assert world.dead_reasons("f/$Transfer") == [("on", "QuotaExceeded")]
    world.add_rule("t/subscriptions/s", rule("r", SqlFilter("1=1"), "SET sys.SessionId = 'new'"))
    world.send("t", "changed", session_id="known")
    assert world.dead_reasons("t/subscriptions/s") == [("changed", "QuotaExceeded")]
    taken = _session_bytes(world)
    for _ in range(9):
        world.send("t", "changed", session_id="known")
    assert _session_bytes(world) == taken


@pytest.mark.req("T14")
@pytest.mark.req("T21")
def test_fa8_states_are_counted(lived: World) -> None:
    """A state is refused beyond the bound, and can be replaced by one that is no larger."""
    lived.queue("q", requires_session=True)
    lived.namespace.limit_sessions(ROOM)
    holder = lived.accept_session("q", "s").link
    lived.do(SetSessionState("q", "s", b"x" * 90_000, holder))
    lived.refused(QuotaExceededError, SetSessionState("q", "s", b"x" * 100_000, holder))
    lived.do(SetSessionState("q", "s", b"y" * 90_000, holder))
    other = lived.accept_session("q", "other").link
    lived.refused(QuotaExceededError, SetSessionState("q", "other", b"x" * 10_000, other))
    lived.do(SetSessionState("q", "s", None, holder))
    lived.do(SetSessionState("q", "other", b"x" * 10_000, other))
    for link in (holder, other):
        lived.detach(link)
    lived.lull()
    assert lived.do(ListSessions("q")) == ("other",)
    assert 10_000 < _session_bytes(lived) < 10_600
    other = lived.accept_session("q", "other").link
    assert lived.do(GetSessionState("q", "other", other)) == b"x" * 10_000
    lived.do(SetSessionState("q", "other", None, other))
    lived.detach(other)
    assert _session_bytes(lived) == 0


@pytest.mark.req("T14")
def test_fa8_what_comes_back_leaves_a_row(lived: World) -> None:
    """Whatever a holder does with a session's messages: the order is theirs, and when the holder
    has gone the session is a row again."""
    lived.queue("q", requires_session=True, max_delivery_count=99)
    bodies = [f"{number:0>3}" for number in range(40)]
    for body in bodies:
        lived.send("q", body, session_id="s")
        lived.send("q", body, session_id="other")
    for turn in range(6):
        link = lived.accept_session("q", "s").link
        taken = lived.take(link, 10 + turn)
        if turn % 2:
            lived.abandon("q", *taken[1::2])
            lived.abandon("q", *taken[::-2])
        lived.detach(link)
        sessions = lived["q"].sessions
        assert sessions is not None
        assert sessions.kept == []
        lived.lull()
    for session in ("s", "other"):
        link = lived.accept_session("q", session).link
        assert lived.texts(lived.take(link, 99)) == bodies


@pytest.mark.req("T14")
def test_fa8_removed_from_the_middle(lived: World) -> None:
    """Messages of a session that leave by another door do not break the order of the others."""
    lived.queue("q", requires_session=True)
    sent = [lived.send("q", f"{n}", session_id="ab"[n % 2])[0] for n in range(20)]
    for number in (sent[0], sent[6], sent[8], sent[18], sent[3]):
        lived["q"].remove(number)
    link = lived.accept_session("q", "a").link
    assert lived.texts(lived.take(link, 99)) == ["2", "4", "10", "12", "14", "16"]
    lived.detach(link)
    link = lived.accept_session("q", "b").link
    assert lived.texts(lived.take(link, 99)) == [f"{n}" for n in range(1, 20, 2) if n != 3]


_VERSION_2 = (
    "c-pO0&2HN;40f8V=^kM}zy_Uz!7a8PeCl3c$6ba&kS!(=qFAYZnx;j7-S<kn?E$uz*mHE0Ejfk&F9kXRf+(8&_>r"
    "P~k_B1*`SpF2W#e#sp8Z=!VJ}YF{hkO;it`y+i5iuBMmEeYNkOiOS2fhOu_`SVqHa_J){1&zNO4c3s#cUc&8$#0U"
    "8C(XN12f|yQN0l0bQ2}pI^M65e?T)XfWu%k)mQ2C<hCb4<*H%Ndq%-__jqtYJ0%Udk6-MX`-xlJ_zQ_NlUGjjeqT"
    "=^j5~HM6#eMl7rigXnA(YJV_2x+<@NEN;zNaIp%?yl@chHZ-o!QYP%Tbtnxv~+@lJPj)$CcrMFCTYE^3Ku`#{R#x"
    "m<LoP5MS+yH4wt+76~fVP7x?BK<R%Z^sbY_$YV)dt#nOzeX*Sn3)q<IJ*{VWS0Jp54VW7O+IaU3+EPNx=9oUpsj0"
    "6SmlN1!E2f_3iN#{r7S5hW0p#(`52kn7r&ENIIHjoaIRzaVF;-dh#s=iQqqfJR9(cc8PWA(*dUluWGrQCV~FSAoA"
    "%rg5+ldU_)>4EP1n|#BZA5T_t|8*0f)d=xKrz^Zjp}W0P=fe;Z)l;Ck6xFL1pI`lnvrNy~ivFd$di)8yOd*T4I`M"
    "xjUJuunp7#-TSc@4GDiQ!A&9(*6&LPi8Jvqx(1J$E4NDUGuE+eRiyiN2chp_G42y<o{S1!g*R({sO(JwDA"
)
"""A snapshot as it was before sessions were rows: they stand there one by one, and their numbers
have gaps."""


@pytest.mark.req("T14")
def test_fa8_a_snapshot_of_version_2_opens() -> None:
    world = World()
    world.namespace = Namespace.load(decompress(b85decode(_VERSION_2)))
    bodies = world["q"].every_body()
    world.payloads = dict.fromkeys(bodies, message("x").payload)
    world.namespace.restart(world.now)
    assert world.do(ListSessions("q")) == ("", "a", "b", "only", "ü")
    for session, count in (("a", 2), ("", 1), ("ü", 1), ("b", 2)):
        accepted = world.accept_session("q")
        assert accepted.session_id == session
        assert len(world.take(accepted.link, 9)) == count
    for session, state in (("only", b"state"), ("new", None)):
        link = world.accept_session("q", session).link
        assert world.do(GetSessionState("q", session, link)) == state
    sessions = world["q"].sessions
    assert sessions is not None
    assert len({session.number for session in sessions}) == len(sessions) == 7
    again = Namespace.load(b"".join(world.namespace.dump()))
    found = again.find("q").sessions
    assert found is not None
    assert sorted(each.id for each in found) == ["", "a", "b", "later", "only", "ü"]


def _accept_many(world: World) -> None:
    for number in range(1_000):
        world.accept_session("q", f"new-{number}")


@pytest.mark.req("T14")
@pytest.mark.req("T21")
def test_fa8_a_receiver_begins_no_session_beyond_the_bound(world: World) -> None:
    """Who waits for the messages of a session that is not there yet takes memory, too; who
    receives from one that is there makes room."""
    world.queue("q", requires_session=True)
    _short_of(world, 0)
    world.refused(QuotaExceededError, Attach(99, "q", session="new"))
    world.accept_session("q", "session-1")
    world.namespace.limit_sessions(ROOM)
    with pytest.raises(QuotaExceededError):
        _accept_many(world)
    assert ROOM - 2_000 < _session_bytes(world) <= ROOM


@pytest.mark.req("T14")
def test_fa8_a_receiver_begins_no_session_of_any_length(world: World) -> None:
    world.queue("q", requires_session=True)
    world.accept_session("q", "x" * 128)
    world.refused(ArgumentError, Attach(99, "q", session="x" * 129))


@pytest.mark.req("T14")
@pytest.mark.req("T21")
@pytest.mark.parametrize("levels", [2, 3, 10])
def test_fa8_held_sessions_take_what_is_counted(levels: int) -> None:
    """Each level has an order of its own. It is counted anew when the levels change."""
    namespace, count = Namespace(), 2_000
    settings = QueueSettings(requires_session=True, priority=PrioritySettings(levels=levels))
    namespace.apply(CreateQueue("q", settings), START)
    sends = [[message("x", session_id=f"session-{number}")] for number in range(count)]
    tracemalloc.start()
    try:
        before = _traced()
        for link, each in enumerate(sends, 1):
            namespace.apply(Send("q", each), START)
            namespace.apply(Attach(link, "q", session=each[0].session_id), START)
            namespace.apply(Flow(link, 1, link), START)
        taken = _traced() - before
    finally:
        tracemalloc.stop()
    counted = _session_bytes(namespace)
    assert 0.4 * taken < counted < taken
    for other in (levels + 1, levels):
        changed = replace(settings, priority=PrioritySettings(levels=other))
        namespace.apply(UpdateEntity("q", changed), START)
        assert (_session_bytes(namespace) > counted) == (other > levels)
    assert _session_bytes(namespace) == counted
    namespace.apply(DeleteEntity("q"), START)
    namespace.apply(CreateQueue("q", settings), START)
    assert _session_bytes(namespace) == 0


@pytest.mark.req("T14")
@pytest.mark.req("T21")
def test_fa8_rows_that_are_free_are_used_before_new_ones(lived: World) -> None:
    """Sessions that come and go take the memory of those that are there at a time."""
    lived.queue("q", requires_session=True)
    for batch in _batches(2_100, 300):
        lived.do(Send("q", batch))
    taken = _session_bytes(lived)
    for number in range(100):
        holder = lived.accept_session("q", f"session-{number}").link
        lived.complete("q", *lived.take(holder))
        lived.detach(holder)
    lived.lull()
    lived.do(Send("q", [message("x", session_id=f"another-{number}") for number in range(100)]))
    assert _session_bytes(lived) <= taken + 100


def test_fa8_a_session_whose_lock_is_over_is_accepted_again_at_the_bound() -> None:
    """The lock of an empty session is over, and no tick has come: whoever asks for the session
    gets it, though the sessions have reached their limit. (The refusal came after the end of the
    lock was written, and the broker stopped.)"""
    world = World()
    world.queue("q", requires_session=True, lock_duration_ms=5_000)
    world.accept_session("q", "empty")
    world.send("q", *[message("x", session_id=f"s{n}") for n in range(100)])
    world.namespace.limit_sessions(_session_bytes(world) - 1)
    world.now += 5_000
    world.accept_session("q", "empty")


@pytest.mark.parametrize("seed", range(8))
def test_fa8_random_commands_at_the_bound(seed: int) -> None:
    """Whatever is sent, held, left and forgotten when sessions have reached their limit: a command
    is done or refused with `QuotaExceededError`, and a refusal has changed nothing. What nobody
    holds stays within the limit."""
    chance = Random(seed)
    world = World()
    weights = (3, 1) if seed % 2 else None
    priority = PrioritySettings(levels=2, weights=weights) if seed % 3 else None
    world.queue("q", requires_session=True, lock_duration_ms=5_000, priority=priority)
    limit = 40_000
    world.namespace.limit_sessions(limit)
    links: list[tuple[int, str]] = []
    refused = 0
    for number in range(3_000):
        name = f"session-{chance.randrange(150)}"
        letters = [message("x", session_id=name, priority=chance.choice((0, 9)))]
        commands: list[Command] = [
            Send("q", letters),
            Send("q", letters),
            Attach(number, "q", session=name),
        ]
        if links:
            link, held = chance.choice(links)
            commands += [
                Flow(link, chance.randrange(3), number << 32),
                SetSessionState("q", held, chance.choice((None, b"s" * 200)), link),
                Detach(link),
            ]
        command = chance.choice(commands)
        try:
            world.do(command)
        except QuotaExceededError:
            refused += 1
        except (SessionCannotBeLockedError, SessionLockLostError):
            pass
        except NotAllowedError:  # the lock was over, and with it the link
            links.remove((link, held))
        else:
            if isinstance(command, Attach):
                links.append((number, name))
            elif isinstance(command, Detach):
                links.remove((link, held))
        world.now += chance.choice((0, 0, 0, 10, 1_000))
        if chance.random() < 0.5:
            world.tick()
    for link, _ in links:
        world.do(Detach(link))
    assert refused > 50
    assert _session_bytes(world) <= limit


def test_fa8_sessions_with_weights_are_rows_again_when_they_are_left() -> None:
    """Their turns are no reason to keep an object: thousands that were each held once stay within
    the limit."""
    world = World()
    priority = PrioritySettings(levels=10, weights=(1,) * 10)
    world.queue("q", requires_session=True, priority=priority)
    names = [f"s{n}" for n in range(500)]
    for name in names:
        world.send("q", *[message("x", session_id=name, priority=p) for p in (0, 9)])
    before = _session_bytes(world)
    for number, name in enumerate(names):
        world.do(Attach(number, "q", session=name))
        world.do(Flow(number, 1, number << 32))
        world.do(Detach(number))
    assert _session_bytes(world) <= before
