"""Fixtures for pytest; they are there wherever Tandem is installed.

    def test_orders(tandem_broker):
        tandem_broker.create_queue("orders")
        client = ServiceBusClient.from_connection_string(tandem_broker.connection_string)

The rule: importing this costs nothing. The server is imported when the first test asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandembus.testing.broker import BrokerClock, TestBroker
    from tandembus.testing.local import LocalBroker, LocalNamespace
    from tandembus.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def tandem_broker() -> Iterator[LocalBroker]:
    """One broker for the whole run, in a thread, with nothing on disk."""
    from tandembus.testing.local import LocalBroker

    with LocalBroker.start() as broker:
        yield broker


@pytest.fixture(scope="session")
def tandem_process() -> Iterator[BrokerProcess]:
    """One broker for the whole run, in a process of its own, with a clock that can be moved: for
    tests that stop it, or whose code must not share the interpreter with it."""
    from tandembus.testing.process import TEST_CLOCK, BrokerProcess

    with BrokerProcess.start(arguments=("--emulator", TEST_CLOCK)) as broker:
        yield broker


@pytest.fixture
def tandem_namespace(tandem_broker: LocalBroker) -> Iterator[LocalNamespace]:
    """A namespace for this test alone: nobody else's entities, a key and a clock of its own."""
    with tandem_broker.namespace() as namespace:
        yield namespace


@pytest.fixture
def tandem_connection_string(tandem_broker: TestBroker) -> str:
    """Its connection string, with the right to do everything."""
    return tandem_broker.connection_string


@pytest.fixture
def tandem_clock(tandem_broker: TestBroker) -> BrokerClock:
    """Its clock. What one test moves stays moved for the next."""
    return tandem_broker.clock
