"""The batch that the SDK calls full is taken, whatever the size of its messages."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandembus.config.server import ServerConfig
from tandembus.store.memory import MemoryStore
from tandembus.testing import LocalBroker

SIZES = (0, 1, 10, 100, 1_000, 10_000, 100_000)


@pytest.mark.req("T19")
@pytest.mark.parametrize("kilobytes", [None, 1_024, 102_400], ids=["standard", "1 MB", "100 MB"])
def test_fw2_what_the_sdk_calls_full_is_taken(kilobytes: int | None) -> None:
    """Filled to the last message that fits, for bodies from nothing to 100 KB, on entities whose
    messages may have 256 KB, 1 MB and 100 MB."""
    with tempfile.TemporaryDirectory(prefix="tandem-") as folder:
        is_premium = kilobytes is not None
        config = ServerConfig(Path(folder), ports=(0,), is_emulator=True, is_premium=is_premium)
        with LocalBroker(config, MemoryStore(), None) as broker:
            settings = {} if kilobytes is None else {"MaxMessageSizeInKilobytes": kilobytes}
            broker.create_queue("q", **settings)
            sent = 0
            with (
                ServiceBusClient.from_connection_string(broker.connection_string) as client,
                client.get_queue_sender("q") as sender,
            ):
                for size in SIZES:
                    batch = sender.create_message_batch()
                    count = 0
                    while True:
                        try:
                            batch.add_message(ServiceBusMessage(b"x" * size))
                        except ValueError:
                            break
                        count += 1
                    sender.send_messages(batch)
                    sent += count
                    assert batch.max_size_in_bytes - batch.size_in_bytes < size + 200
            assert broker.server is not None
            assert broker.server.broker.namespace.find("q").active_count == sent
