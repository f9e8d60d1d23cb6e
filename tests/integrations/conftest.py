"""What the tests of the integrations share: tiny models, passages, an index; and no socket to anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pytest_socket import disable_socket, enable_socket

from antiphon.accel import LanguageModel
from antiphon.accel.tiny import byte_tokenizer, tiny_model
from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages

TEXTS = (
    "Bees live in colonies of up to sixty thousand, and each colony has one queen.",
    "Honey keeps for years because it holds little water.",
    "A queen lays as many as two thousand eggs on a summer's day.",
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    """Everything runs here: only the sockets that an event loop wakes itself with are left."""
    disable_socket(allow_unix_socket=True)
    yield
    enable_socket()


@pytest.fixture(scope="session")
def passages() -> list[Passage]:
    starts = (0, 100, 200)
    return [Passage.at("bees.txt", start, text) for start, text in zip(starts, TEXTS, strict=True)]


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> Path:
    folder = tmp_path_factory.mktemp("bees") / "index"
    index_passages(passages, folder, HashEmbedder())
    return folder


@pytest.fixture(scope="session")
def retriever(index_folder: Path) -> Retriever:
    return Retriever.open(index_folder)


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    """A random model that reads bytes, with a window of 4,096 of them and a chat template.

    It learns nothing from a request, so that the same text takes the same steps.
    """
    tiny = tiny_model(max_position_embeddings=4096)
    model = LanguageModel(tiny, byte_tokenizer(), name="tiny", rows=32, recycling=False)
    model.generate("What it can verify is probed once.", max_new_tokens=2)
    return model
