"""What the tests of the integrations share: tiny models, passages, an index; and no socket to anywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_socket import disable_socket, enable_socket

from antiphon.accel import LanguageModel
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    """Everything runs here: only the sockets that an event loop wakes itself with are left."""
    disable_socket(allow_unix_socket=True)
    yield
    enable_socket()


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    """A random model that reads bytes, with a window of 4,096 of them and a chat template.

    It learns nothing from a request, so that the same text takes the same steps.
    """
    tiny = tiny_model(max_position_embeddings=4096)
    model = LanguageModel(tiny, byte_tokenizer(), name="tiny", num_draft_tokens=32, recycling=False)
    model.generate("What it can verify is probed once.", max_new_tokens=2)
    return model
