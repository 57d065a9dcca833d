"""The broker's behaviour, deterministic: commands and `now` in, changes and effects out.

No I/O, no clock, no randomness, no bodies. `namespace` is the door; `queue` holds the state table
of a message and everything that a queue, a subscription and a dead-letter queue share.
"""
