"""Fixtures of the integration tests: a tiny model, and no network."""

from collections.abc import Iterator

import pytest
from pytest_socket import disable_socket, enable_socket

from antiphon.accel import LanguageModel
from tests.tiny import byte_tokenizer, tiny_model


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    """Forbid sockets, except the Unix sockets that event loops need."""
    disable_socket(allow_unix_socket=True)
    yield
    enable_socket()


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    """A random model of bytes with a context window of 4,096 and a chat template.

    Token recycling is off, so repeated requests take the same steps.
    """
    tiny = tiny_model(max_position_embeddings=4096)
    model = LanguageModel(tiny, byte_tokenizer(), name="tiny", num_draft_tokens=32, recycling=False)
    model.generate("The first call runs the self-test.", max_new_tokens=2)
    return model
