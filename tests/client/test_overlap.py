"""T2 over a long line: overlapping sends share its round trips, whoever the client is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.client.overlap import CLIENTS, Timed, far_broker, the_official_sdk

COUNT = 100
SINGLES = 5


@pytest.mark.req("T2")
@pytest.mark.parametrize("run", CLIENTS.values(), ids=CLIENTS)
def test_overlapping_sends_share_round_trips(run: Callable[[str, int, int], Timed]) -> None:
    """A hundred at a time take less than a quarter of a hundred in a row (really: a fiftieth), and
    far fewer commits than messages."""
    if run is the_official_sdk:
        pytest.importorskip("azure.servicebus")
    with far_broker() as (connection_string, store):
        overlapped, one_by_one = run(connection_string, COUNT, SINGLES)
        assert overlapped < one_by_one / 4
        assert store.groups < COUNT
