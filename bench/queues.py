"""Makes the queues that its arguments name, at the broker that listens on $BENCH_PORT."""

from __future__ import annotations

import os
import sys

from tandembus.client import Client

STRING = (
    "Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=RootManageSharedAccessKey;"
    "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
)

if __name__ == "__main__":
    client = Client(STRING.format(port=os.environ["BENCH_PORT"]))
    for name in sys.argv[1:]:
        client.entities.create_queue(name, MaxSizeInMegabytes=5120)
