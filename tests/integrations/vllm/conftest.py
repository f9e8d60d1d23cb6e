"""Fixtures: a supported version of vLLM, and sockets: the tests of clients connect to a fake server over real ones."""

import pytest

from antiphon.integrations.vllm import patching


@pytest.fixture(autouse=True)
def _version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let vLLM appear to be installed."""
    monkeypatch.setattr(patching, "version", lambda name: "0.33.0")


@pytest.fixture(autouse=True)
def _no_network() -> None:
    """Replace the fixture that blocks sockets; these tests connect to this machine only."""
