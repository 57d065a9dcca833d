"""The log in PostgreSQL beside the log in files, on one disk in one run: `make bench-postgres`.

Both brokers are `tandem serve`, each with one client. The rates move with the machine; the ratio is
what docs/postgres.md tells.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tandembus.client import Client
from tandembus.testing import BrokerProcess
from tests.postgresql import Cluster, new_database

BODY = b"x" * 1_024


def measure(broker: BrokerProcess, singles: int, many: int) -> tuple[float, float, float]:
    """Messages/s: sent one at a time, sent in batches, received and completed."""
    with Client(broker.connection_string) as client:
        with client.sender("orders") as sender:
            began = time.perf_counter()
            for _ in range(singles):
                sender.send(BODY)
            one_by_one = singles / (time.perf_counter() - began)
            began = time.perf_counter()
            sender.send_all(BODY for _ in range(many)).check()
            batched = many / (time.perf_counter() - began)
        with client.receiver("orders") as receiver:
            began = time.perf_counter()
            count = 0
            while count < singles + many:
                messages = receiver.receive(500)
                receiver.complete(messages)
                count += len(messages)
            received = count / (time.perf_counter() - began)
    return one_by_one, batched, received


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--singles", type=int, default=500)
    parser.add_argument("--many", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cluster = Cluster()
    names = ("one at a time", "in batches", "received")
    try:
        with tempfile.TemporaryDirectory(dir=cluster.folder) as folder:
            url = new_database(cluster)
            with (
                BrokerProcess.start(Path(folder) / "files") as files,
                BrokerProcess.start(Path(folder) / "rows", ("--store", url)) as rows,
            ):
                for each in (files, rows):
                    each.create_queue("orders")
                found = [
                    [measure(each, options.singles, options.many) for each in (files, rows)]
                    for _ in range(options.rounds)
                ]
    finally:
        cluster.close()
    print(f"{'messages of 1 KB a second':<28}{'files':>10}{'PostgreSQL':>12}{'ratio':>8}")
    for at, name in enumerate(names):
        files_rate = statistics.median(both[0][at] for both in found)
        rows_rate = statistics.median(both[1][at] for both in found)
        print(f"{name:<28}{files_rate:>10,.0f}{rows_rate:>12,.0f}{rows_rate / files_rate:>8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
