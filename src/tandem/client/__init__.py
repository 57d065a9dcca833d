"""The lean client: Service Bus over our own AMQP code, for Tandem and for Azure.

with Client(connection_string) as client, client.sender("orders") as sender:
    sender.send(OutgoingMessage(b"…", session_id="a"))

`Client` blocks, `AsyncClient` is for asyncio; both are thin shells around the same conversation.
Each name is fetched from its module when it is asked for, so that a program pays for its half only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.client.addresses import ConnectionString, dead_letter_path, subscription_path
    from tandem.client.aio import AsyncClient, AsyncReceiver, AsyncSender
    from tandem.client.blocking import Client, Posted, Receiver, Sender
    from tandem.client.entities import Entities, Entity
    from tandem.client.messages import EncodedMessage, OutgoingMessage, ReceivedMessage, Sendable
    from tandem.client.operations import Correlation, Rule, SessionCounts, Settlement
    from tandem.client.receiving import NextSession, ReceiveMode
    from tandem.client.sending import SendReport

__all__ = [
    "AsyncClient",
    "AsyncReceiver",
    "AsyncSender",
    "Client",
    "ConnectionString",
    "Correlation",
    "EncodedMessage",
    "Entities",
    "Entity",
    "NextSession",
    "OutgoingMessage",
    "Posted",
    "ReceiveMode",
    "ReceivedMessage",
    "Receiver",
    "Rule",
    "SendReport",
    "Sendable",
    "Sender",
    "SessionCounts",
    "Settlement",
    "dead_letter_path",
    "subscription_path",
]


def __getattr__(name: str) -> Any:
    match name:
        case "ConnectionString" | "dead_letter_path" | "subscription_path":
            from tandem.client import addresses

            return getattr(addresses, name)
        case "AsyncClient" | "AsyncReceiver" | "AsyncSender":
            from tandem.client import aio

            return getattr(aio, name)
        case "Client" | "Posted" | "Receiver" | "Sender":
            from tandem.client import blocking

            return getattr(blocking, name)
        case "Entities" | "Entity":
            from tandem.client import entities

            return getattr(entities, name)
        case "EncodedMessage" | "OutgoingMessage" | "ReceivedMessage" | "Sendable":
            from tandem.client import messages

            return getattr(messages, name)
        case "Correlation" | "Rule" | "SessionCounts" | "Settlement":
            from tandem.client import operations

            return getattr(operations, name)
        case "NextSession" | "ReceiveMode":
            from tandem.client import receiving

            return getattr(receiving, name)
        case "SendReport":
            from tandem.client import sending

            return getattr(sending, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
