"""The SDK's inside, and nothing of it anywhere else in this package.

Four things are not in the public face of azure-servicebus, and are done here:

- to give a message back without counting a delivery. The SDK does so itself for messages that
  arrive while nobody receives: outcome `released`. Tandem and Azure both count nothing then;
- to give it back with a property. AMQP 1.0 §3.4.5 has `modified` with delivery-failed=false for it,
  which Tandem does not count. Azure takes it for an abandon: the property is there, and the
  delivery is counted;
- to take back a question: a receive that ended leaves its credit, and the next message would be
  locked for somebody who does not want it. The SDK does so when a receiver is closed;
- to read in short turns. A link of the SDK has one lock for reading and writing, so a settlement
  waits while a receive listens, 0.2 s a turn.
"""

from __future__ import annotations

from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient

TURN_S: Final = 0.02
"""How long a listening receive keeps others from the socket."""
GAP_S: Final = 0.02
"""A receive of several messages ends when none came for so long; the SDK's own is 0.2 s."""

STATE: Final = "x-tandem-work-state"
"""The application property with the state of a message that was given back."""
UNCOUNTED: Final = "x-tandem-uncounted"
"""Asks Tandem not to count the delivery (see `server/links.py`); Azure takes it for a property."""


def connect(connection_string: str) -> ServiceBusClient:
    """A client for pools, which have a rhythm of their own for trying again."""
    return ServiceBusClient.from_connection_string(
        connection_string, retry_total=1, user_agent="tandem-workers"
    )


def quicken(receiver: Any) -> None:
    """Make an open receiver listen in short turns. A reconnect makes it slow again."""
    receiver._further_pull_receive_timeout = GAP_S
    handler = receiver._handler
    if handler is not None and handler._socket_timeout != TURN_S:
        handler._socket_timeout = TURN_S
        handler._connection._socket_timeout = TURN_S


async def drain(receiver: Any) -> None:
    """Ask for no more; what came meanwhile goes back."""
    if receiver._handler is not None:
        await receiver._amqp_transport.drain_and_release_messages_async(receiver._handler)


async def give_back(receiver: Any, message: ServiceBusReceivedMessage) -> None:
    """To its place in the queue; no delivery is counted. There is no answer to wait for."""
    await receiver._handler.settle_messages_async(
        message._delivery_id, message._delivery_tag, "released"
    )
    message._settled = True


async def give_back_with(receiver: Any, message: ServiceBusReceivedMessage, state: bytes) -> None:
    """To its place in the queue, with a property. Raises if the broker does not say that it is
    done."""
    await receiver._handler.settle_messages_async(
        message._delivery_id,
        message._delivery_tag,
        "modified",
        undeliverable_here=False,
        message_annotations={STATE: state, UNCOUNTED: True},
        await_outcome=True,
        outcome_timeout=receiver._config.timeout,
    )
    message._settled = True


def state_of(message: ServiceBusReceivedMessage) -> bytes | None:
    """What it was given back with."""
    properties: dict[Any, Any] = message.application_properties or {}
    state = properties.get(STATE.encode(), properties.get(STATE))
    return state if isinstance(state, bytes) else None
