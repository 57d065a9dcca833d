#!/usr/bin/env python3
"""The official Azure SDK (azure-servicebus) as a load driver: what an application sees.
Same command line idea and the same one-line JSON as amqpload.

  sdkload.py send -a 127.0.0.1:5672 -q QUEUE [-t SECS] [-n N] [-s BYTES] [-b BATCH]
  sdkload.py recv -a 127.0.0.1:5672 -q QUEUE [-t SECS] [-n N] [-b BATCH] [--idle SECS]
  --conn STRING   full connection string instead of -a (must name a loopback host)

The Python client tops out at a few thousand messages/s on its own: use it to see that the
SDK works and what one client gets, not to find the broker's limit (amqpload is for that)."""

import argparse
import json
import resource
import struct
import sys
import time

from azure.servicebus import ServiceBusClient, ServiceBusMessage

MAGIC = b"BNCHTS01"


def main():
    p = argparse.ArgumentParser()
    p.add_argument("mode", choices=["send", "recv"])
    p.add_argument("-a", default="127.0.0.1:5672")
    p.add_argument("-q", required=True)
    p.add_argument("-t", type=float, default=10)
    p.add_argument("-n", type=int, default=-1)
    p.add_argument("-s", type=int, default=1024)
    p.add_argument("-b", type=int, default=100)
    p.add_argument("--idle", type=float, default=2)
    p.add_argument("--key-name", default="RootManageSharedAccessKey")
    p.add_argument("--key", default="SAS_KEY_VALUE")
    p.add_argument("--conn")
    o = p.parse_args()
    conn = o.conn or (
        f"Endpoint=sb://{o.a};SharedAccessKeyName={o.key_name};SharedAccessKey={o.key};"
        "UseDevelopmentEmulator=true;"
    )
    if not ("//127." in conn or "//localhost" in conn):
        sys.exit(json.dumps({"error": "target is not loopback"}))
    lat, n, dups, seen = [], 0, 0, set()
    begin = time.monotonic_ns()
    first = last = None
    with ServiceBusClient.from_connection_string(conn) as client:
        if o.mode == "send":
            filler = bytes(range(256)) * (o.s // 256 + 1)
            with client.get_queue_sender(o.q) as sender:
                first = time.monotonic_ns()
                while (o.n < 0 or n < o.n) and time.monotonic_ns() - first < o.t * 1e9:
                    k = o.b if o.n < 0 else min(o.b, o.n - n)
                    t = time.monotonic_ns()
                    messages = [
                        ServiceBusMessage(MAGIC + struct.pack("<QQ", n + i, t) + filler[: o.s - 24])
                        for i in range(k)
                    ]
                    sender.send_messages(messages if k > 1 else messages[0])
                    last = time.monotonic_ns()
                    lat.append((last - t) / 1e3)
                    n += k
        else:
            with client.get_queue_receiver(o.q, prefetch_count=o.b * 2) as receiver:
                while (o.n < 0 or n < o.n) and (time.monotonic_ns() - (first or begin)) < o.t * 1e9:
                    batch = receiver.receive_messages(max_message_count=o.b, max_wait_time=o.idle)
                    if not batch:
                        break
                    for message in batch:
                        body = b"".join(message.body)
                        receiver.complete_message(message)
                        last = time.monotonic_ns()
                        first = first or last
                        n += 1
                        if body[:8] == MAGIC:
                            seq, t = struct.unpack_from("<QQ", body, 8)
                            lat.append((last - t) / 1e3)
                            dups += seq in seen
                            seen.add(seq)
    lat.sort()
    secs = ((last or begin) - (first or begin)) / 1e9
    usage = resource.getrusage(resource.RUSAGE_SELF)
    out = {
        "mode": o.mode,
        "n": n,
        "secs": round(secs, 4),
        "rate": round(n / secs, 1) if secs else 0,
        "dups": dups,
        "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
        "first_ms": round(((first or begin) - begin) / 1e6, 1),
    }
    if lat:
        out.update(p50_us=round(lat[len(lat) // 2], 1), p99_us=round(lat[int(len(lat) * 0.99)], 1))
    print(json.dumps(out))


main()
