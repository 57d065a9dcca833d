"""Worlds for the scenarios of core."""

from __future__ import annotations

import pytest

from tests.unit.core.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture(params=[False, True], ids=["one life", "restarts"])
def lived(request: pytest.FixtureRequest) -> World:
    """The scenario runs twice: as it is, and with a restart at each `lull`."""
    return World(restarts=bool(request.param))
