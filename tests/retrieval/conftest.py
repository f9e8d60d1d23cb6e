"""Embedders and toy models that several tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.retrieval import HashEmbedder, MiniLMEmbedder
from tests.child_process import _child_processes_find_our_modules
from tests.retrieval.servers import postgres

__all__ = ["_child_processes_find_our_modules"]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCAB_SIZE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """A PostgreSQL server that the tests share; each uses another table."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def words() -> HashEmbedder:
    return HashEmbedder()


@pytest.fixture(scope="session")
def minilm() -> MiniLMEmbedder:
    return MiniLMEmbedder("cpu")


def save_toy_bert(folder: Path, labels: int = 0) -> Path:
    """Save a BERT with random weights and a letter vocabulary; with labels, it is a classifier."""
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

    config = BertConfig(
        vocab_size=len(VOCAB_SIZE),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    config.num_labels = labels or 1
    torch.manual_seed(0)
    if labels:
        model = BertForSequenceClassification(config)
        model.classifier.weight.data *= 200  # logits so far apart that their sigmoids are mostly 0 or 1
        model.save_pretrained(folder)
    else:
        BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab={token: place for place, token in enumerate(VOCAB_SIZE)}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder with random weights, CLS pooling and a prompt for questions."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("toy")
    transformer = Transformer(str(save_toy_bert(folder / "bert")), max_seq_length=48)
    model = SentenceTransformer(modules=[transformer, Pooling(16, "cls")], device="cpu", prompts={"query": "ask "})
    model.save(str(folder / "model"))
    return folder / "model"


@pytest.fixture(scope="session")
def toy_cross_encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Cross-encoder folders with random weights, by their number of outputs per pair."""
    folder = tmp_path_factory.mktemp("cross")
    return {labels: save_toy_bert(folder / str(labels), labels) for labels in (1, 3)}
