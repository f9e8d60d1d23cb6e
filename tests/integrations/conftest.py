"""Fixtures of the integration tests: a tiny model, and no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from pytest_socket import disable_socket, enable_socket
from typer.testing import CliRunner

from antiphon.accel import LanguageModel, resolve_model
from antiphon.pipelines.cli import app
from antiphon.retrieval.embedders.minilm import MiniLMEmbedder
from antiphon.retrieval.embedders.protocol import TokenVectors
from tests.tiny import byte_tokenizer, tiny_model

CORPORA = Path(__file__).parents[2] / "benchmarks" / "corpora"


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


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """An index of all corpora, which the first worker makes for all."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "corpora-index"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            corpora = [str(path) for path in CORPORA.iterdir() if path.is_dir()]
            done = CliRunner().invoke(app, ["index", *corpora, "--out", str(folder)])
            assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def encoded_once() -> Iterator[None]:
    """Let the sentence encoders compute each text once, for tests that ask the same questions on several paths."""
    compute, known = MiniLMEmbedder.token_vectors, dict[tuple[MiniLMEmbedder, str], TokenVectors]()

    def token_vectors(self: MiniLMEmbedder, texts: Sequence[str]) -> list[TokenVectors]:
        new = [text for text in dict.fromkeys(texts) if (self, text) not in known]
        known.update(zip([(self, text) for text in new], compute(self, new), strict=True))
        return [known[self, text] for text in texts]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MiniLMEmbedder, "token_vectors", token_vectors)
        yield


@pytest.fixture(scope="session")
def bundled_reader() -> LanguageModel:
    """The bundled model `reader` in float32; without its package the tests are skipped."""
    try:
        folder = resolve_model("reader")
    except ImportError as error:
        pytest.skip(f"the bundled base model is not installed: {error}")
    return LanguageModel.from_pretrained(folder, dtype=torch.float32)
