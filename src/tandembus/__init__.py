"""Tandem: a durable message broker with the semantics of Azure Service Bus."""

__version__ = "0.2.0"
