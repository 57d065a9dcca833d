"""Reading by position over the wire: pages, cursors, taps, and what is refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandembus.client import Client, OutgoingMessage
from tandembus.client.positions import Page
from tandembus.errors import ArgumentError
from tandembus.testing import LocalBroker

ROOT = Path(__file__).resolve().parents[2]
FAR = 1 << 60


@pytest.fixture
def client() -> Iterator[Client]:
    with LocalBroker.start() as broker:
        broker.create_queue("q", RequiresSession=True)
        broker.create_queue("orders")
        with Client(broker.connection_string) as made:
            yield made


def fill(client: Client, path: str, count: int, size: int = 10) -> None:
    with client.sender(path) as sender:
        sender.send_all(
            OutgoingMessage(b"%d" % at + b"." * size, session_id="s", properties={"n": at})
            for at in range(count)
        ).check()


def numbers(pages: Iterator[Page]) -> list[int]:
    return [number for page in pages for number in page.sequence_numbers]


@pytest.mark.req("D1")
def test_a_range_in_pages(client: Client) -> None:
    """More than one page, each with all its columns; sessions are no bar."""
    fill(client, "q", 3_000, 1_000)
    (extent,) = client.survey("q").partitions
    assert (extent.first, extent.tail, extent.floor) == (1, 3_001, 0)
    pages = list(client.scan("q", 0, 0, FAR))
    assert len(pages) >= 3
    assert [number for page in pages for number in page.sequence_numbers] == list(range(1, 3_001))
    assert all(len(page.messages) <= 1 << 20 for page in pages)
    page = pages[0]
    assert list(page.sizes) == [len(payload) for payload in page.payloads()]
    assert set(page.states) == set(page.delivery_counts) == {0}
    assert numbers(client.scan("q", 0, 0, FAR, sql_filter="n % 1000 = 0")) == [1, 1_001, 2_001]
    assert numbers(client.scan("q", 0, 3_001, FAR)) == []
    assert numbers(client.scan("q", 0, 5, 5)) == []


@pytest.mark.req("D1")
def test_how_much_a_range_holds(client: Client) -> None:
    fill(client, "q", 1_000)
    whole = client.advance("q", 0, 0, FAR)
    assert (whole.end, whole.count) == (1_001, 1_000)
    assert client.advance("q", 0, 1, FAR, max_count=10).end == 11
    parts = client.split("q", 0, 0, FAR, 7)
    assert len(parts) == 7
    assert sum(part.count for part in parts) == 1_000
    assert max(part.size for part in parts) < 1.05 * min(part.size for part in parts)
    assert parts[-1].end == 1_001


@pytest.mark.req("D2")
def test_cursors_and_taps(client: Client) -> None:
    """A removal of more messages than one command removes is one call."""
    fill(client, "orders", 9_000)
    assert client.move_cursor("orders", "etl", 0, 1, removes=True) == 1
    client.open_tap("orders", "tap", 60_000)
    assert client.move_cursor("orders", "etl", 0, 8_990, removes=True) == 8_990
    assert len(client.browse("orders", count=100)) == 11
    assert len(numbers(client.scan("orders", 0, 0, FAR, fields="none"))) == 9_000
    assert client.survey("orders").cursors == {"etl": {0: 8_990}, "tap": {0: 1}}
    client.drop_cursor("orders", "tap")
    assert len(numbers(client.scan("orders", 0, 0, FAR))) == 11


def test_what_is_refused(client: Client) -> None:
    fill(client, "q", 1)
    with pytest.raises(ArgumentError, match="'fields' is one of"):
        next(client.scan("q", 0, 0, FAR, fields="some"))
    with pytest.raises(ArgumentError, match="parts"):
        client.split("q", 0, 0, FAR, 2_000)
    with pytest.raises(ArgumentError):
        next(client.scan("q", 0, 0, FAR, sql_filter="= ="))
    with pytest.raises(ArgumentError, match="no partition 5"):
        client.advance("q", 5, 0, FAR)
    with pytest.raises(ArgumentError, match="has not come to position"):
        client.move_cursor("q", "etl", 0, 99)


def test_the_program_of_the_page(client: Client) -> None:
    """docs/wire-extensions.md: the one that scans."""
    fill(client, "orders", 3)
    text = (ROOT / "docs" / "wire-extensions.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (program,) = [block for block in blocks if "survey" in block]
    target = client.target
    place = (
        f"Endpoint=sb://{target.host}:{target.port};SharedAccessKeyName={target.key_name};"
        f"SharedAccessKey={str.__str__(target.key or '')};UseDevelopmentEmulator=true"
    )
    told = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"connection_string = {place!r}\n{program}"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in told.stdout.splitlines()] == ["1", "2", "3"]
    assert client.survey("orders").cursors == {"backup": {0: 4}}
