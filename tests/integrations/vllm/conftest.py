"""Tests of clients speak to a server of their own, over real sockets."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _no_network() -> None:
    """Sockets are left alone here; every address in these tests is this machine's."""
