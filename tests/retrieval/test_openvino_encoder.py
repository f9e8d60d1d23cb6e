"""Encoders on OpenVINO: vectors agree with torch, graphs are cached, and deviating graphs are not used."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.retrieval import CrossEncoderReranker, MiniLMEmbedder, Passage, SentenceTransformerEmbedder
from antiphon.retrieval.encoder_runtime import openvino_encoder
from antiphon.retrieval.encoder_runtime.engine_selection import (
    CLOSE,
    COMPARISON_TEXTS,
    choose_encoder_engine,
    max_cosine_distance,
)
from antiphon.retrieval.encoder_runtime.graph import graph_folder, openvino_obstacle

pytest.importorskip("openvino")
pytestmark = pytest.mark.skipif(
    openvino_obstacle("cpu", "float32") is not None, reason="OpenVINO's encoders are for x86 CPUs"
)

TEXTS = ["The cat sleeps on the warm stove.", "a", "", "Photosynthesis turns light into sugar. " * 9, "漢字 🙂"]


@pytest.fixture(scope="module")
def toy(toy_folder: Path) -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(toy_folder, device="cpu", engine="openvino")


@pytest.fixture
def toy_model(toy_folder: Path) -> Any:
    """The model of the toy embedder, in torch and float32."""
    from transformers import AutoModel

    return AutoModel.from_pretrained(toy_folder, dtype=torch.float32).eval()


def test_the_bundled_model_agrees_with_torch(minilm: MiniLMEmbedder) -> None:
    assert minilm.engine.name == "openvino", minilm.engine.reason
    theirs = MiniLMEmbedder("cpu", engine="torch")
    assert theirs.engine.name == "torch"
    assert theirs.fingerprint == minilm.fingerprint
    assert max_cosine_distance(theirs.embed_documents(TEXTS), minilm.embed_documents(TEXTS)) <= CLOSE
    for one, other in zip(theirs.token_vectors(TEXTS), minilm.token_vectors(TEXTS), strict=True):
        assert one.vectors.shape == other.vectors.shape
        assert not len(one.ids) or max_cosine_distance(one.vectors, other.vectors) <= 10 * CLOSE


def test_a_model_of_sentence_transformers_keeps_its_pooling_and_its_prompts(
    toy: SentenceTransformerEmbedder, toy_folder: Path
) -> None:
    theirs = SentenceTransformerEmbedder(toy_folder, device="cpu", engine="torch")
    assert (toy.engine.name, theirs.engine.name) == ("openvino", "torch")
    assert re.fullmatch(r"its vectors are \S+ from torch's in float32, in cosine", toy.engine.reason)
    assert max_cosine_distance(theirs.embed_documents(TEXTS), toy.embed_documents(TEXTS)) <= CLOSE
    assert max_cosine_distance(theirs.embed_queries(TEXTS), toy.embed_queries(TEXTS)) <= CLOSE
    assert (toy.fingerprint, toy.max_tokens, toy.dim) == (theirs.fingerprint, theirs.max_tokens, theirs.dim)


def test_a_cross_encoder_keeps_its_order_and_its_scores(toy_cross_encoders: dict[int, Path]) -> None:
    how: dict[str, Any] = {"device": "cpu", "max_length": 48}
    ours, theirs = (
        CrossEncoderReranker(toy_cross_encoders[1], engine=engine, **how) for engine in ("openvino", "torch")
    )
    given = [Passage.at(f"source {place}", 0, text) for place, text in enumerate(TEXTS)]
    found, expected = (each.rerank("where is the cat?", given) for each in (ours, theirs))
    assert [each.source for each in found] == [each.source for each in expected]
    assert [each.score for each in found] == pytest.approx([each.score for each in expected], abs=0.02)


def test_texts_of_several_threads_are_not_mixed(toy: SentenceTransformerEmbedder) -> None:
    alone = [toy.embed_documents([text] * 3) for text in COMPARISON_TEXTS]
    with ThreadPoolExecutor(len(alone)) as pool:
        found = list(pool.map(lambda text: [toy.embed_documents([text] * 3) for _ in range(4)], COMPARISON_TEXTS))
    assert all(np.array_equal(one, alone[place]) for place, several in enumerate(found) for one in several)


def chosen(model: Any, vectors: Any, wanted: Any = "auto", device: str = "cpu") -> Any:
    """Choose the engine, with ``vectors`` as the function that computes vectors; its name is the cache key."""
    key = getattr(vectors, "__name__", "")
    return choose_encoder_engine(
        wanted,
        model,
        "last_hidden_state",
        folder=graph_folder(key),
        device=device,
        precision="float32",
        vectors=vectors,
    )


def first_states(model: Any) -> Any:
    """Return the states of the first tokens of three padded texts."""
    ids = torch.arange(6, 36).reshape(3, 10)
    mask = torch.ones_like(ids).tril(6)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0].float().numpy()


def test_a_graph_that_deviates_from_torch_is_never_chosen(toy_model: Any) -> None:
    def lying(model: Any) -> Any:
        states = first_states(model)
        return states + 0.05 * np.abs(states).max() * isinstance(model, openvino_encoder.OpenVINOEncoder)

    model, choice = chosen(toy_model, lying)
    assert model is toy_model
    assert choice.name == "torch"
    assert "from torch's in float32, in cosine, and 1.0e-04 is allowed" in choice.reason
    assert chosen(toy_model, lying)[1] == choice, "what was found out is kept"
    with pytest.raises(ValueError, match=r"cannot run this encoder: its vectors are .* Choose the engine auto"):
        chosen(toy_model, lying, "openvino")


def test_a_model_that_cannot_be_converted_stays_on_torch_with_the_reason(
    toy_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(torch.nn.Module):
        config = toy_model.config

        def forward(self, input_ids: Any, attention_mask: Any, return_dict: bool = True) -> Any:
            raise RuntimeError("this one reads no tensors\nat all")

    model = Stubborn()
    same, choice = chosen(model, first_states)
    assert same is model
    assert choice.reason == (
        "OpenVINO was not chosen: the model cannot be converted (RuntimeError: this one reads no tensors)"
    )


def test_a_model_is_converted_once_without_a_warning(
    toy_model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    logging.Logger.warning_once.cache_clear()  # type: ignore[attr-defined]
    made: list[Any] = []

    def noting(*given: Any) -> Any:
        made.append(given)
        return converted(*given)

    converted = openvino_encoder.convert
    monkeypatch.setattr(openvino_encoder, "convert", noting)
    expected = first_states(toy_model)

    def states() -> Any:
        return first_states(
            openvino_encoder.OpenVINOEncoder(
                toy_model, "last_hidden_state", folder=graph_folder("toy"), precision="float32"
            )
        )

    assert max_cosine_distance(expected, states()) < 1e-6
    assert max_cosine_distance(expected, states()) < 1e-6
    assert len(made) == 1
    assert caplog.messages == []
