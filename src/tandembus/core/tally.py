"""What has happened to an entity's messages since the broker came up, for whoever watches.

Numbers that only grow and cost an addition. They are no part of the state: nothing is decided by
them, the log does not have them, and a restart begins anew.
"""

from __future__ import annotations

from tandembus.changes import Removal, Return


class Tally:
    __slots__ = ("incoming", "outgoing", "pings", "removed", "returned")

    def __init__(self) -> None:
        self.incoming = 0
        """Taken in: sent, forwarded or published."""
        self.outgoing = 0
        """Handed out, also again."""
        self.pings = 0
        """From paired namespaces that ask whether this one would take a message (N8)."""
        self.removed = [0] * (max(Removal) + 1)
        """By `Removal`."""
        self.returned = [0] * (max(Return) + 1)
        """By `Return`."""
