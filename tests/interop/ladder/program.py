"""A Python client as a program: it sends a body, receives it in one of four ways, tells its hash.

    python -m tests.interop.ladder.program azure|lean|cli

Requests are lines of JSON on the standard input, replies are lines of JSON on the standard output:

    {"way": "complete", "queue": "q", "file": "/…", "offset": 0, "size": 262144}
    {"sha256": "…"}     or     {"error": "send: …", "is_too_large": false}

The way `send` only sends. Where the broker is, and which transport is meant, is in the environment
(`clients`). Each request has connections of its own, so that a failure spoils no other request.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

WAIT_S: Final = 600
"""For a message that is there: as long as the slowest client may take to read 100 MB."""


class TooLarge(Exception):
    """The message is refused because of its size."""


def _azure() -> tuple[Callable[[str, bytes], None], Callable[[str, str], bytes]]:
    from azure.servicebus import (
        ServiceBusClient,
        ServiceBusMessage,
        ServiceBusReceiveMode,
        TransportType,
    )
    from azure.servicebus.exceptions import MessageSizeExceededError

    def client() -> ServiceBusClient:
        road = os.environ["TANDEM_ROAD"]
        more: dict[str, Any] = {"retry_total": 0}
        if road == "plain":
            return ServiceBusClient.from_connection_string(os.environ["TANDEM_PLAIN"], **more)
        address = f"sb://localhost:{os.environ['TANDEM_PORT']}"
        if road == "websocket":
            more["transport_type"] = TransportType.AmqpOverWebsocket
        return ServiceBusClient.from_connection_string(
            os.environ["TANDEM_TLS"],
            custom_endpoint_address=address,
            connection_verify=os.environ["TANDEM_CA"],
            **more,
        )

    def send(queue: str, body: bytes) -> None:
        with client() as opened, opened.get_queue_sender(queue) as sender:
            try:
                sender.send_messages(ServiceBusMessage(body))
            except MessageSizeExceededError as error:
                raise TooLarge(str(error)) from None

    def receive(queue: str, way: str) -> bytes:
        mode = ServiceBusReceiveMode.PEEK_LOCK
        if way == "delete":
            mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with client() as opened, opened.get_queue_receiver(queue, receive_mode=mode) as receiver:
            if way == "peek":
                (found,) = receiver.peek_messages(1, timeout=WAIT_S)
                return b"".join(found.body)
            (received,) = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT_S)
            if way == "defer":
                number = received.sequence_number
                assert number is not None
                receiver.defer_message(received)
                (received,) = receiver.receive_deferred_messages(number, timeout=WAIT_S)
            if way != "delete":
                receiver.complete_message(received)
            return b"".join(received.body)

    return send, receive


def _lean() -> tuple[Callable[[str, bytes], None], Callable[[str, str], bytes]]:
    from tandembus.client import Client, ReceiveMode
    from tandembus.errors import MessageSizeExceededError

    def client() -> Client:
        if os.environ["TANDEM_ROAD"] == "plain":
            return Client(os.environ["TANDEM_PLAIN"], timeout_s=WAIT_S)
        string, authority = os.environ["TANDEM_TLS"], os.environ["TANDEM_CA"]
        return Client(string, timeout_s=WAIT_S, ca_file=authority)

    def send(queue: str, body: bytes) -> None:
        with client() as opened, opened.sender(queue) as sender:
            try:
                sender.send(body)
            except MessageSizeExceededError as error:
                raise TooLarge(str(error)) from None

    def receive(queue: str, way: str) -> bytes:
        mode = ReceiveMode.RECEIVE_AND_DELETE if way == "delete" else ReceiveMode.PEEK_LOCK
        with client() as opened:
            if way == "peek":
                (found,) = opened.browse(queue, count=1)
                return found.body
            with opened.receiver(queue, mode=mode) as receiver:
                (received,) = receiver.receive(1, wait_s=WAIT_S)
                if way == "defer":
                    number = received.sequence_number
                    receiver.defer(received)
                    (received,) = receiver.receive_deferred([number])
                if way != "delete":
                    receiver.complete(received)
                return received.body

    return send, receive


def _cli() -> tuple[Callable[[str, bytes], None], Callable[[str, str], bytes]]:
    road = os.environ["TANDEM_ROAD"]
    environment = {**os.environ, "TANDEM_CONNECTION_STRING": os.environ["TANDEM_PLAIN"]}
    more = ["--timeout", str(WAIT_S)]
    if road != "plain":
        environment["TANDEM_CONNECTION_STRING"] = os.environ["TANDEM_TLS"]
        more += ["--ca-file", os.environ["TANDEM_CA"]]

    def tandem(*words: str) -> dict[str, Any]:
        """A command; the line of JSON that it prints."""
        with tempfile.TemporaryFile() as file:
            ended = subprocess.run(
                [sys.executable, "-m", "tandembus.cli", *words, "--json", *more],
                env=environment, stdout=file, stderr=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
            if ended.returncode:
                said = ended.stderr.strip() or f"exit code {ended.returncode}"
                is_too_large = "the entity takes" in said or "exceeds the limit" in said
                raise TooLarge(said) if is_too_large else RuntimeError(said)
            file.seek(0)
            found: dict[str, Any] = json.loads(file.read())
            return found

    def send(queue: str, body: bytes) -> None:
        with tempfile.NamedTemporaryFile(prefix="tandem-body-") as file:
            file.write(body)
            file.flush()
            tandem("send", queue, "--file", file.name)

    def receive(queue: str, way: str) -> bytes:
        wait = ("--wait", str(WAIT_S))
        match way:
            case "peek":
                found = tandem("peek", queue, "--count", "1")
            case "delete":
                found = tandem("receive", queue, "--delete", *wait)
            case "complete":
                found = tandem("receive", queue, *wait)
            case _:
                number = tandem("receive", queue, "--defer", *wait)["sequence_number"]
                found = tandem("receive", queue, "--sequence-number", str(number))
        if "body" in found:
            return str(found["body"]).encode()
        return base64.b64decode(found["body_base64"])

    return send, receive


PROGRAMS: Final = {"azure": _azure, "lean": _lean, "cli": _cli}


def answer(
    send: Callable[[str, bytes], None],
    receive: Callable[[str, str], bytes],
    request: dict[str, Any],
) -> dict[str, object]:
    """The reply to a request."""
    step = "send"
    try:
        with Path(request["file"]).open("rb") as file:
            file.seek(request["offset"])
            send(request["queue"], file.read(request["size"]))
        if request["way"] == "send":
            return {}
        step = "receive"
        return {"sha256": sha256(receive(request["queue"], request["way"])).hexdigest()}
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result
        text = f"{step}: {type(error).__name__}: {error}"
        return {"error": text, "is_too_large": isinstance(error, TooLarge)}


def main() -> None:
    send, receive = PROGRAMS[sys.argv[1]]()
    for line in sys.stdin:
        print(json.dumps(answer(send, receive, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
