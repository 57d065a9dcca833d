"""What the lean client costs: its own CPU time for each message, the broker being another process.

python -m tests.client.cost --count 50000 --size 200
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence

from tandembus.client import Client, OutgoingMessage, ReceiveMode, Receiver
from tandembus.testing import BrokerProcess

AIM_US = 10.0
"""For each of: sending in batches, receiving with completing."""
PAGE = 1_000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, prog="cost")
    parser.add_argument("--count", type=int, default=50_000, help="messages (50,000)")
    parser.add_argument("--size", type=int, default=200, help="bytes of a body (200)")
    options = parser.parse_args(arguments)
    count, body = options.count, bytes(options.size)
    with (
        BrokerProcess.start(arguments=["--emulator"]) as broker,
        Client(broker.connection_string) as client,
    ):
        broker.create_queue("q")
        with client.sender("q") as sender:
            bulk = _cost("send_all of bytes", lambda: sender.send_all([body] * count).accepted)
            message = OutgoingMessage(body, message_id="m", properties={"a": 1, "b": "x"})
            _cost("send_all with properties", lambda: sender.send_all([message] * count).accepted)
            _cost("post, one transfer each", lambda: _post(sender.post, sender.flush, body, 5_000))
        with client.receiver("q", prefetch=2 * PAGE) as receiver:
            whole = _cost("receive, read body, complete", lambda: _drain(receiver, count, True))
        mode = ReceiveMode.RECEIVE_AND_DELETE
        with client.receiver("q", mode=mode, prefetch=2 * PAGE) as receiver:
            _cost("receive and delete", lambda: _drain(receiver, count, False))
    print(
        f"the lean client takes {bulk:.1f} us of CPU to send a message of {options.size} bytes and "
        f"{whole:.1f} us to receive and complete one; the aim is {AIM_US:g} us each"
    )
    return 0


def _cost(what: str, work: Callable[[], int]) -> float:
    began, cpu = time.perf_counter(), time.process_time()
    done = work()
    cpu_us = (time.process_time() - cpu) / done * 1e6
    wall_us = (time.perf_counter() - began) / done * 1e6
    print(
        f"{what}: {cpu_us:.2f} us of CPU a message, {wall_us:.1f} us in all, {done:,}", flush=True
    )
    return cpu_us


def _post(
    post: Callable[[bytes], object], flush: Callable[[], None], body: bytes, count: int
) -> int:
    for _ in range(count):
        post(body)
    flush()
    return count


def _drain(receiver: Receiver, count: int, settles: bool) -> int:
    done = size = 0
    while done < count:
        page = receiver.receive(PAGE, wait_s=30)
        if not page:
            break
        done += len(page)
        if settles:
            for message in page:
                size += len(message.body)
            receiver.complete(page)
    return done


if __name__ == "__main__":
    sys.exit(main())
