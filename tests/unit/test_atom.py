"""The only XML reader: what it refuses, how fast, and how times and durations are written (S7)."""

from __future__ import annotations

import contextlib
import random
from datetime import timedelta

import pytest

from tandembus import atom
from tandembus.atom import ATOM, INSTANCE, SERVICE_BUS, Entry, Origin, read
from tandembus.errors import ProtocolError
from tandembus.limits import MAX_DURATION_MS, MAX_HTTP_BODY, MAX_XML_DEPTH, MAX_XML_NODES
from tandembus.model import NEVER

ENTRY = (
    f'<?xml version="1.0"?><a:entry xmlns:a="{ATOM}"><a:content type="application/xml">'
    f'<QueueDescription xmlns="{SERVICE_BUS}" xmlns:zz="{INSTANCE}">'
    "<LockDuration>PT1M</LockDuration>"
    f'<ForwardTo zz:nil="true">x</ForwardTo><UserMetadata/>'
    f'<Filter zz:type="q:SqlFilter"> a<b/>c&amp;&#233;<![CDATA[<]]></Filter>'
    "</QueueDescription></a:content></a:entry>"
).encode()


def test_elements_are_found_by_namespace() -> None:
    """Whatever the prefixes are; nil and empty are as if not there."""
    content = atom.content_of(read(ENTRY))
    assert (content.namespace, content.name) == (SERVICE_BUS, "QueueDescription")
    assert content.value("LockDuration") == "PT1M"
    assert content.value("ForwardTo") is None
    assert content.value("UserMetadata") is None
    assert content.value("LockDurations") is None
    assert content.find("LockDuration", ATOM) is None
    (description,) = content.every("Filter")
    assert description.type == "SqlFilter"
    assert description.text == " ac&é<"


BOMB = b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">' + b"".join(
    b'<!ENTITY %c "&%c;&%c;&%c;&%c;&%c;&%c;&%c;&%c;&%c;&%c;">' % (n + 1, *[n] * 10)
    for n in range(97, 120)
) + b"]><l>&x;</l>"  # fmt: skip

ATTACKS = [
    BOMB,
    b"<!DOCTYPE x><x/>",
    b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><x/>',
    b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
    b'<!DOCTYPE x [<!ENTITY % p SYSTEM "http://localhost/"> %p;]><x/>',
    b'<!DOCTYPE x [<!ATTLIST x a CDATA "d">]><x/>',
    b"<x>&undefined;</x>",
    b"<?php echo 1 ?><x/>",
    b"<x><?xml-stylesheet href='a'?></x>",
    b"<x>" * (MAX_XML_DEPTH + 1) + b"</x>" * (MAX_XML_DEPTH + 1),
    b"<x>" + b"<y/>" * MAX_XML_NODES + b"</x>",
    b"<x " + b" ".join(b'a%d=""' % n for n in range(MAX_XML_NODES)) + b"/>",
    b"<x>" + b"".join(b'<y xmlns:a%d="u"/>' % n for n in range(MAX_XML_NODES // 2)) + b"</x>",
    b"<x>" + b" " * MAX_HTTP_BODY + b"</x>",
    b"<x>" * 200_000,
    b"",
    b"text",
    b"<x>",
    b"<x/><y/>",
    b"<p:x/>",
    b"<x a='1' a='2'/>",
    b"\xff\xfe<\0x\0/\0>\0",
    b"<x>\xff</x>",
    b"<x>\0</x>",
    "<x>é</x>".encode("latin-1"),
]


@pytest.mark.parametrize("data", ATTACKS, ids=lambda data: repr(data[:24]))
def test_attacks_are_refused(data: bytes) -> None:
    """Entity expansion, external entities, instructions, depth, breadth, size."""
    with pytest.raises(ProtocolError):
        read(data)


def test_a_bomb_costs_nothing() -> None:
    """Refused where the document type begins, before anything can grow (F5)."""
    with pytest.raises(ProtocolError, match="document type"):
        read(BOMB)


def test_limits_can_be_reached() -> None:
    read(b"<x>" * MAX_XML_DEPTH + b"</x>" * MAX_XML_DEPTH)
    assert len(read(b"<x>" + b"<y/>" * (MAX_XML_NODES - 1) + b"</x>").children) == 1999


def test_any_bytes_give_an_element_or_a_protocol_error() -> None:
    """2,000 mutated bodies."""
    chance = random.Random(3)
    seeds = [ENTRY, *ATTACKS[:6]]
    for _ in range(2_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(data))
            data[at : at + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
        with contextlib.suppress(ProtocolError):
            atom.content_of(read(bytes(data)))


@pytest.mark.parametrize(
    "data",
    [
        b"<entry/>",
        f'<entry xmlns="{ATOM}"/>'.encode(),
        f'<entry xmlns="{ATOM}"><content/></entry>'.encode(),
        f'<entry xmlns="{ATOM}"><content><a/><b/></content></entry>'.encode(),
        f'<feed xmlns="{ATOM}"><content><a/></content></feed>'.encode(),
    ],
)
def test_an_entry_has_one_content(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        atom.content_of(read(data))


# --- writing --------------------------------------------------------------------------------------

ORIGIN = Origin("h:1", "name<space>", "2021-05")


def test_an_entry_as_it_is_written() -> None:
    """Byte for byte what WIRE.md §10.2 has."""
    entry = Entry("t/Subscriptions/s", "s", 1, 1_700_000_000_001, "<X/>")
    assert atom.write_entry(entry, ORIGIN).decode() == (
        '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom">'
        "<id>https://h:1/t/Subscriptions/s?api-version=2021-05</id>"
        '<title type="text">s</title>'
        "<published>1970-01-01T00:00:00.001Z</published>"
        "<updated>2023-11-14T22:13:20.001Z</updated>"
        "<author><name>name&lt;space&gt;</name></author>"
        '<link rel="self" href="https://h:1/t/Subscriptions/s?api-version=2021-05"/>'
        '<content type="application/xml"><X/></content></entry>'
    )


@pytest.mark.parametrize("has_more", [True, False])
def test_a_feed_has_a_next_link_only_if_there_is_more(has_more: bool) -> None:
    entry = Entry("q", "q", 1, 1, "<X/>")
    data = atom.write_feed(
        "$Resources/queues", "Queues", [entry], ORIGIN, 5, skip=2, top=1, has_more=has_more
    )
    feed = read(data)
    links = {
        each.attributes["", "rel"]: each.attributes["", "href"] for each in feed.every("link", ATOM)
    }
    base = "https://h:1/$Resources/queues?api-version=2021-05"
    wanted = {"self": f"{base}&$skip=2&$top=1"}
    if has_more:
        wanted["next"] = f"{base}&$skip=3&$top=1"
    assert links == wanted
    assert [each.name for each in feed.children][:4] == ["title", "id", "updated", "link"]
    assert len(list(feed.every("entry", ATOM))) == 1


def test_text_is_escaped() -> None:
    """And what XML has no character for is replaced: a reader must be able to read it."""
    text = '<a b="c">&\'\r\n\t\0\x1b\ud800\uffff é 𝄞'
    back = read(f'<x a="{atom.escape(text)}">{atom.escape(text)}</x>'.encode())
    assert back.text == '<a b="c">&\'\r\n\t\ufffd\ufffd\ufffd\ufffd é 𝄞'
    assert back.attributes["", "a"].startswith('<a b="c">')
    assert atom.tag("x", None) == ""
    assert atom.tag("x", False) == "<x>false</x>"
    assert atom.write_error(404, "a<b") == b"<Error><Code>404</Code><Detail>a&lt;b</Detail></Error>"


# --- times and durations --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "PT0S"),
        (1, "PT0.001S"),
        (1_500, "PT1.5S"),
        (60_000, "PT1M"),
        (3_600_000, "PT1H"),
        (86_400_000, "P1D"),
        (86_400_000 + 3_661_000, "P1DT1H1M1S"),
        (NEVER, "P10675199DT2H48M5.4775807S"),
        (MAX_DURATION_MS, "P10675199DT2H48M5.4775807S"),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert atom.duration(ms) == text
    assert atom.read_duration(text) == (NEVER if ms >= MAX_DURATION_MS else ms)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("P10675199DT2H48M5.47758S", NEVER),
        ("P99999999D", NEVER),
        (" PT300S ", 300_000),
        ("P1W", 604_800_000),
        ("PT0.0019999S", 1),
        ("PT90M", 5_400_000),
    ],
)
def test_durations_as_clients_write_them(text: str, ms: int) -> None:
    assert atom.read_duration(text) == ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "1D", "P1Y", "P1M", "-PT1S", "PT-1S", "P1S", "PT" + "9" * 99 + "S"],
)
def test_bad_durations(text: str) -> None:
    with pytest.raises(ProtocolError):
        atom.read_duration(text)


def test_every_timedelta_comes_back() -> None:
    chance = random.Random(1)
    for _ in range(500):
        ticks = chance.randrange(10 ** chance.randint(1, 18)) * chance.choice((1, -1))
        assert atom.read_ticks(atom.ticks_duration(ticks)) == ticks


def test_times() -> None:
    assert atom.time(0) == "0001-01-01T00:00:00Z"
    assert atom.time(1_700_000_000_007) == "2023-11-14T22:13:20.007Z"
    assert atom.time(NEVER) == "9999-12-31T23:59:59.999Z"
    assert atom.read_time("2023-11-14T22:13:20.007Z") == 1_700_000_000_007
    assert atom.read_time("2023-11-14T22:13:20") == 1_700_000_000_000
    assert atom.read_time("2023-11-14T23:13:20+01:00") == 1_700_000_000_000
    assert atom.read_time("1969-12-31T23:59:59Z") == -timedelta(seconds=1) // timedelta(
        milliseconds=1
    )
    for bad in ("", "yesterday", "2023-13-01T00:00:00Z"):
        with pytest.raises(ProtocolError):
            atom.read_time(bad)


def test_booleans_and_integers() -> None:
    assert [atom.read_boolean(text) for text in ("true", " True", "1")] == [True] * 3
    assert [atom.read_boolean(text) for text in ("false", "FALSE", "0")] == [False] * 3
    assert [atom.read_integer(text) for text in ("5", "-5", " +5 ")] == [5, -5, 5]
    for bad in ("", "yes", "2"):
        with pytest.raises(ProtocolError):
            atom.read_boolean(bad)
    for bad in ("", "1.5", "٣", "1_0", "9" * 19, "9" * 20):
        with pytest.raises(ProtocolError):
            atom.read_integer(bad)
