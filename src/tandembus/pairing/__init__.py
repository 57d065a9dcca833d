"""Paired namespaces: when the primary cannot take a send, a queue in a second namespace can.

    from tandembus.pairing import PairingOptions, pair_namespace          # blocking
    from tandembus.pairing.aio import pair_namespace                      # asyncio

    bus = pair_namespace(primary, secondary, PairingOptions())
    sender = bus.get_queue_sender("orders")       # as before: same calls, types and exceptions

It stands on the official SDK (azure-servicebus: `pip install tandembus[pairing]`), so either side
may be Tandem or Azure. See docs/pairing.md.

    options     what can be chosen; names and settings of backlog queues
    heart       states, timers, rotation: pure
    aliases     a message on its way through a backlog, byte for byte: pure
    moves       what the syphon may send when: pure
    ledger      what it costs: pure
    failures    what the SDK's exceptions mean, and our own
    sending, probing    the steps of a send and of a probe, for both shells
    aio, blocking       the shells: what waits, what runs beside
    syphon      brings the backlog home (asyncio)
    survey      what a pair looks like from outside
    namespaces  how a namespace is reached
    wire        the SDK, and the bytes of its messages

Nothing is imported before it is used: the command line comes through here, also without the SDK.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandembus.pairing.blocking import PairedNamespace, PairedSender, pair_namespace
    from tandembus.pairing.failures import (
        BacklogMessageSizeError,
        BacklogUnavailableError,
        PairFaultedError,
    )
    from tandembus.pairing.heart import BacklogChanged, EntityChanged, Health, SideFaulted
    from tandembus.pairing.ledger import Formula, Ledger, Operations
    from tandembus.pairing.namespaces import AzureAdministration, Namespace
    from tandembus.pairing.options import PairingOptions, Probe

__all__ = [
    "AzureAdministration",
    "BacklogChanged",
    "BacklogMessageSizeError",
    "BacklogUnavailableError",
    "EntityChanged",
    "Formula",
    "Health",
    "Ledger",
    "Namespace",
    "Operations",
    "PairFaultedError",
    "PairedNamespace",
    "PairedSender",
    "PairingOptions",
    "Probe",
    "SideFaulted",
    "pair_namespace",
]


def __getattr__(name: str) -> Any:
    match name:
        case "PairedNamespace" | "PairedSender" | "pair_namespace":
            from tandembus.pairing import blocking

            return getattr(blocking, name)
        case "BacklogMessageSizeError" | "BacklogUnavailableError" | "PairFaultedError":
            from tandembus.pairing import failures

            return getattr(failures, name)
        case "BacklogChanged" | "EntityChanged" | "Health" | "SideFaulted":
            from tandembus.pairing import heart

            return getattr(heart, name)
        case "Formula" | "Ledger" | "Operations":
            from tandembus.pairing import ledger

            return getattr(ledger, name)
        case "AzureAdministration" | "Namespace":
            from tandembus.pairing import namespaces

            return getattr(namespaces, name)
        case "PairingOptions" | "Probe":
            from tandembus.pairing import options

            return getattr(options, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
