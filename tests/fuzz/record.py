"""What the official SDK really says: recorded once, kept in `recorded/sdk.bin` as seeds.

    python -m tests.fuzz.record        records again, through a proxy in front of a real broker

The file is zlib over records: direction (0 is from the client), four bytes of length, the bytes of
one frame or protocol header. What says something about the machine is written over.
"""

from __future__ import annotations

import re
import socket
import threading
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from tandembus.testing import BrokerProcess

FILE: Final = Path(__file__).parent / "recorded" / "sdk.bin"
_MOST_ALIKE: Final = 6
"""Frames of one performative and length that are kept."""
_PLATFORM: Final = re.compile(rb"Linux[\w.+-]+")


def frames(data: bytes) -> Iterator[bytes]:
    """The frames and protocol headers of one direction of a connection."""
    at = 0
    while at + 8 <= len(data):
        size = 8 if data[at : at + 4] == b"AMQP" else int.from_bytes(data[at : at + 4], "big")
        if size < 8:
            return
        yield data[at : at + size]
        at += size


def recorded() -> tuple[list[bytes], list[bytes]]:
    """Frames of the client and of the broker."""
    raw = zlib.decompress(FILE.read_bytes())
    said: tuple[list[bytes], list[bytes]] = ([], [])
    at = 0
    while at < len(raw):
        size = int.from_bytes(raw[at + 1 : at + 5], "big")
        said[raw[at]].append(raw[at + 5 : at + 5 + size])
        at += 5 + size
    return said


class Proxy:
    """Hands on all bytes, and keeps them."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.streams: list[tuple[bytearray, bytearray]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._to))
            stream = (bytearray(), bytearray())
            self.streams.append(stream)
            for pair in ((near, far, stream[0]), (far, near, stream[1])):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(65_536):
                kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._listening.close()


def tour(connection_string: str) -> None:
    """A bit of everything that a program does with the SDK."""
    from azure import servicebus as sdk
    from azure.servicebus.amqp import AmqpAnnotatedMessage

    client: Any = sdk.ServiceBusClient.from_connection_string(connection_string)
    with client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(
                sdk.ServiceBusMessage(
                    "one", application_properties={"n": 1, "text": "x", "is": True, "f": 1.5},
                    message_id="id-1", correlation_id="c", subject="label", to="to",
                    reply_to="back", content_type="text/plain", time_to_live=timedelta(hours=1),
                )
            )  # fmt: skip
            sender.send_messages([sdk.ServiceBusMessage(f"m{n}") for n in range(5)])
            for body in ({"value_body": {b"k": [1, 2.5, None]}}, {"sequence_body": [[1], ["a"]]}):
                sender.send_messages(AmqpAnnotatedMessage(**body))
            soon = datetime.now(UTC) + timedelta(hours=1)
            numbers = sender.schedule_messages([sdk.ServiceBusMessage("later")] * 2, soon)
            sender.cancel_scheduled_messages(numbers[0])
        with client.get_queue_receiver("orders", max_wait_time=2) as receiver:
            receiver.peek_messages(5)
            got = receiver.receive_messages(max_message_count=6, max_wait_time=3)
            receiver.renew_message_lock(got[0])
            receiver.complete_message(got[0])
            receiver.dead_letter_message(got[1], reason="why", error_description="because")
            receiver.defer_message(got[2])
            receiver.abandon_message(got[3])
            receiver.receive_deferred_messages(got[2].sequence_number)
        mode = sdk.ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client.get_queue_receiver(
            "orders", sub_queue="deadletter", receive_mode=mode, max_wait_time=2
        ) as receiver:
            receiver.receive_messages(max_wait_time=2)
        with client.get_queue_sender("talks") as sender:
            sender.send_messages([sdk.ServiceBusMessage("s", session_id="a") for _ in range(2)])
        with client.get_queue_receiver("talks", session_id="a", max_wait_time=2) as receiver:
            receiver.session.set_state(b"half")
            receiver.session.get_state()
            receiver.session.renew_lock()
            receiver.receive_messages(max_wait_time=2)
        with client.get_topic_sender("news") as sender:
            sender.send_messages(sdk.ServiceBusMessage("n"))
        with client.get_subscription_receiver("news", "all", max_wait_time=2) as receiver:
            receiver.receive_messages(max_wait_time=2)


def main() -> None:
    with BrokerProcess.start(arguments=["--emulator"]) as broker:
        broker.create_queue("orders")
        broker.create_queue("talks", RequiresSession=True)
        broker.create_topic("news")
        broker.create_subscription("news", "all")
        proxy = Proxy(broker.port)
        tour(broker.connection_string.replace(str(broker.port), str(proxy.port), 1))
        proxy.close()
    alike: dict[tuple[int, bytes, int], int] = {}
    kept = bytearray()
    for stream in proxy.streams:
        for side, data in enumerate(stream):
            for frame in frames(bytes(data)):
                shape = (side, frame[8:11], len(frame))
                alike[shape] = alike.get(shape, 0) + 1
                if alike[shape] > _MOST_ALIKE:
                    continue
                clean = _PLATFORM.sub(lambda it: b"x" * len(it[0]), frame)
                kept += bytes((side,)) + len(clean).to_bytes(4, "big") + clean
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_bytes(zlib.compress(bytes(kept), 9))
    client, server = recorded()
    size = FILE.stat().st_size
    print(f"{len(client)} frames of the SDK and {len(server)} of the broker, in {size} bytes")


if __name__ == "__main__":
    main()
