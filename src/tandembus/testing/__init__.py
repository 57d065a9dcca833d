"""The kit for tests, users' and ours: a real broker on a free port, and a clock that a test moves.

with LocalBroker.start() as broker:
    broker.create_queue("orders")
    client = ServiceBusClient.from_connection_string(broker.connection_string)
    broker.clock.advance(minutes=5)

`LocalBroker` runs in a thread of the test's process, `BrokerProcess` in a process of its own. For
pytest there are fixtures (`tandem_broker`, …), see `plugin`. Nothing is imported before it is used:
pytest loads the plugin in every run, also in those that need no broker.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandembus.testing.broker import BrokerClock, TestBroker
    from tandembus.testing.local import LocalBroker, LocalNamespace
    from tandembus.testing.process import BrokerProcess
    from tandembus.testing.proxy import DelayingProxy

__all__ = [
    "BrokerClock",
    "BrokerProcess",
    "DelayingProxy",
    "LocalBroker",
    "LocalNamespace",
    "TestBroker",
]


def __getattr__(name: str) -> Any:
    match name:
        case "BrokerClock" | "TestBroker":
            from tandembus.testing import broker

            return getattr(broker, name)
        case "BrokerProcess":
            from tandembus.testing.process import BrokerProcess

            return BrokerProcess
        case "DelayingProxy":
            from tandembus.testing.proxy import DelayingProxy

            return DelayingProxy
        case "LocalBroker" | "LocalNamespace":
            from tandembus.testing import local

            return getattr(local, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
