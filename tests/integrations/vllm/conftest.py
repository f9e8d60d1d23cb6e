"""Fixtures: the tests of clients connect to a fake server over real sockets."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_network() -> None:
    """Replace the fixture that blocks sockets; these tests connect to this machine only."""
