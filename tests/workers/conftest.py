"""One broker for all tests of workers; entities have names of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandembus.testing import LocalBroker
from tests.workers.bus import Bus


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker.start() as running:
        yield running


@pytest.fixture
def bus(broker: LocalBroker) -> Iterator[Bus]:
    found = Bus(broker)
    yield found
    found.close()
