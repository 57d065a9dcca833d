"""The lean client: Service Bus over our own AMQP code, for Tandem and for Azure.

with Client(connection_string) as client, client.sender("orders") as sender:
    sender.send(OutgoingMessage(b"…", session_id="a"))

`Client` blocks, `AsyncClient` is for asyncio; both are thin shells around the same conversation.
"""

from tandem.client.addresses import ConnectionString, dead_letter_path, subscription_path
from tandem.client.aio import AsyncClient, AsyncReceiver, AsyncSender
from tandem.client.blocking import Client, Posted, Receiver, Sender
from tandem.client.entities import Entities, Entity
from tandem.client.messages import OutgoingMessage, ReceivedMessage, Sendable
from tandem.client.operations import Correlation, Rule, Settlement
from tandem.client.receiving import NextSession, ReceiveMode
from tandem.client.sending import SendReport

__all__ = [
    "AsyncClient",
    "AsyncReceiver",
    "AsyncSender",
    "Client",
    "ConnectionString",
    "Correlation",
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
    "Settlement",
    "dead_letter_path",
    "subscription_path",
]
