"""Two brokers, in threads, with nothing on disk: a primary and a secondary."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandembus.testing import LocalBroker


@pytest.fixture
def primary() -> Iterator[LocalBroker]:
    with LocalBroker.start() as broker:
        yield broker


@pytest.fixture
def secondary() -> Iterator[LocalBroker]:
    with LocalBroker.start() as broker:
        yield broker
