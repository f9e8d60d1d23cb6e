"""A server of a tiny model with three passages: `python -m tests.pipelines.server.tiny_server [KEY=VALUE ...] PORT`."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from antiphon.accel import LanguageModel
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.http_server import run_server
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.conftest import TEXTS
from tests.pipelines.server.conftest import tiny_service
from tests.tiny import byte_tokenizer, tiny_model


def main(port: int, *, drain: int = 5, **settings: Any) -> None:
    """Serve until the process is terminated."""
    torch.set_num_threads(1)
    model = LanguageModel(tiny_model(max_position_embeddings=16384), byte_tokenizer(), name="tiny")
    with TemporaryDirectory() as folder:
        passages = [Passage.at("bees.txt", 100 * number, text) for number, text in enumerate(TEXTS)]
        index_passages(passages, Path(folder) / "index", HashEmbedder())
        limits = {"max_output_tokens": 64, "max_running": 8, "max_waiting": 64} | settings
        service = tiny_service(model, Path(folder) / "index", **limits)
        run_server(create_app(service), "127.0.0.1", port, drain_seconds=drain)


if __name__ == "__main__":
    given = [argument.split("=") for argument in sys.argv[1:-1] if "=" in argument]
    main(int(sys.argv[-1]), **{name: json.loads(value) for name, value in given})
