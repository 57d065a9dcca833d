"""Sequence numbers and lock tokens as numbers: how wide they are, how they are packed (S2, S3)."""

from __future__ import annotations

from struct import Struct
from typing import Final

TOKEN: Final = Struct("<QQ")
"""A lock token: the sequence number, and a nonce that makes it hold once only."""
PARTITION_SHIFT: Final = 48
COUNT_MASK: Final = (1 << PARTITION_SHIFT) - 1
"""The count of a message within its partition."""
NUMBER_MASK: Final = (1 << 64) - 1
