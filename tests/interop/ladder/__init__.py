"""Messages of 256 KB to 100 MB, every client over every transport: `make ladder`.

`run` is the harness and its table, `clients` starts the clients, `program` and `../js/ladder.mjs`
are what they run, and `memory` measures the broker.
"""
