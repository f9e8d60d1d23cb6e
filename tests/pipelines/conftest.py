"""Fixtures of the pipelines' tests: tiny models and the bundled models, loaded once."""

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.accel import LanguageModel
from antiphon.accel.models.bundled import READER, is_adapter, resolve_model
from antiphon.pipelines.cli.console import quiet_libraries
from tests.child_process import _child_processes_find_our_modules
from tests.tiny import byte_tokenizer, save_model, tiny_model

__all__ = ["_child_processes_find_our_modules"]


@pytest.fixture(scope="session")
def tiny() -> LanguageModel:
    """A random model of bytes with a context window of 1,024 and a chat template."""
    return LanguageModel(tiny_model(max_position_embeddings=1024), byte_tokenizer(), name="tiny")


def printable_model() -> Any:
    """Return a random model that generates printable characters only, so that its text determines its tokens."""
    model: Any = tiny_model(max_position_embeddings=2048)
    with torch.no_grad():
        model.lm_head.weight[:32] = 0
        model.lm_head.weight[127:256] = 0
        model.lm_head.weight[258:] = 0
    return model


@pytest.fixture(scope="session")
def typist() -> LanguageModel:
    """Like ``tiny``, but it generates printable characters only."""
    return LanguageModel(printable_model(), byte_tokenizer(), name="typist")


@pytest.fixture(scope="session")
def reader() -> LanguageModel:
    """Like ``typist``, with a configuration that names the prompt format "reader"."""
    model = printable_model()
    model.config.prompt_format = "reader"
    return LanguageModel(model, byte_tokenizer(), name="tiny-reader")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as a folder that transformers loads."""
    quiet_libraries()
    return save_model(tiny_model(max_position_embeddings=1024), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The bundled base model, converted into the user's cache the first time."""
    quiet_libraries()
    try:
        return Path(resolve_model("smollm2"))
    except ImportError as error:
        pytest.skip(f"the bundled base model is not installed: {error}")


@pytest.fixture(scope="session")
def reader_folder(smollm2_folder: Path) -> Path:
    """The bundled extractive model, merged into the user's cache the first time."""
    if not is_adapter(READER):
        pytest.skip(f"this checkout holds no adapter: {READER}")
    return Path(resolve_model("reader"))


@pytest.fixture(scope="session")
def smollm2(smollm2_folder: Path) -> LanguageModel:
    return LanguageModel.from_pretrained(smollm2_folder, dtype=torch.float32, engine="torch")
