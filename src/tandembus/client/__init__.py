"""The lean client: Service Bus over our own AMQP code, for Tandem and for Azure.

with Client(connection_string) as client, client.sender("orders") as sender:
    sender.send(OutgoingMessage(b"…", session_id="a"))

`Client` blocks, `AsyncClient` is for asyncio; both are thin shells around the same conversation.
Each name is fetched from its module when it is asked for, so that a program pays for its half only.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandembus.client.addresses import (
        ConnectionString,
        dead_letter_path,
        subscription_path,
        transfer_dead_letter_path,
    )
    from tandembus.client.aio import AsyncClient, AsyncReceiver, AsyncSender
    from tandembus.client.blocking import Client, Posted, Receiver, Sender
    from tandembus.client.entities import Entities, Entity
    from tandembus.client.messages import EncodedMessage, OutgoingMessage, ReceivedMessage, Sendable
    from tandembus.client.operations import Correlation, Rule, SessionCounts, Settlement
    from tandembus.client.receiving import NextSession, ReceiveMode
    from tandembus.client.sending import SendReport

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
    "transfer_dead_letter_path",
]


def __getattr__(name: str) -> Any:
    match name:
        case (
            "ConnectionString"
            | "dead_letter_path"
            | "subscription_path"
            | "transfer_dead_letter_path"
        ):
            from tandembus.client import addresses

            return getattr(addresses, name)
        case "AsyncClient" | "AsyncReceiver" | "AsyncSender":
            from tandembus.client import aio

            return getattr(aio, name)
        case "Client" | "Posted" | "Receiver" | "Sender":
            from tandembus.client import blocking

            return getattr(blocking, name)
        case "Entities" | "Entity":
            from tandembus.client import entities

            return getattr(entities, name)
        case "EncodedMessage" | "OutgoingMessage" | "ReceivedMessage" | "Sendable":
            from tandembus.client import messages

            return getattr(messages, name)
        case "Correlation" | "Rule" | "SessionCounts" | "Settlement":
            from tandembus.client import operations

            return getattr(operations, name)
        case "NextSession" | "ReceiveMode":
            from tandembus.client import receiving

            return getattr(receiving, name)
        case "SendReport":
            from tandembus.client import sending

            return getattr(sending, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
