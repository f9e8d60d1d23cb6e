"""Rerank with a cross-encoder of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.encoder_runtime.device import batch_size, pick_device
from antiphon.retrieval.encoder_runtime.engine_selection import (
    COMPARISON_TEXTS,
    Engine,
    EngineChoice,
    choose_module_engine,
)
from antiphon.retrieval.encoder_runtime.hub import (
    HUB_NAMES,
    cached_file,
    load_model,
    loading_options,
    weights_fingerprint,
)
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerankers.protocol import sort_by_score
from antiphon.retrieval.vector_index.flat import Vectors

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder


class CrossEncoderReranker:
    """A cross-encoder, a model that reads question and passage together.

    It gives the best order of all rerankers, but is slow on a CPU. Passages are sorted by the
    model's logits. Their scores are the sigmoids of the logits, between 0 and 1.

    Args:
        model: ``bge-reranker-v2-m3``, a name on the hub, or a folder.
        device: The torch device, such as ``cuda`` or ``cpu``. None: a GPU if there is one.
        depth: The number of candidates to rerank. None: 20 on a CPU, 100 on a GPU.
        max_length: Maximum tokens of a question and a passage together; longer pairs are truncated.
        engine: The engine to use; see `Engine`. The attribute ``engine`` has the chosen engine and the reason.

    Raises:
        ValueError: The model cannot be loaded or returns more than one number for a pair, or
            OpenVINO is requested and cannot run the model.
    """

    def __init__(
        self,
        model: str | Path = "bge-reranker-v2-m3",
        *,
        device: str | None = None,
        depth: int | None = None,
        max_length: int = 512,
        engine: Engine = "auto",
    ) -> None:
        import torch

        self.name = str(model)
        self._device = pick_device(device)
        self.depth = depth or (20 if self._device == "cpu" else 100)
        self._raw = (
            torch.nn.Identity()
        )  # logits, because in half precision the sigmoids of good passages all round to 1
        source = HUB_NAMES.get(self.name, self.name)
        self._model = _load_cross_encoder(source, self._device, max_length)
        if self._model.num_labels != 1:
            raise ValueError(f"{self.name} gives {self._model.num_labels} numbers for a pair; a reranker gives one.")
        self.engine = self._choose_engine(engine, weights_fingerprint(source))

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """Return the passages sorted by the model's logits. See `Reranker.rerank`."""
        if not passages:
            return []
        pairs = [(question, passage.text_with_headings) for passage in passages]
        values = self._logits(pairs)
        return sort_by_score(passages, values.tolist(), (0.5 * (1 + np.tanh(values / 2))).tolist())

    def _logits(self, pairs: list[tuple[str, str]]) -> NDArray[np.float64]:
        logits = self._model.predict(
            pairs,
            batch_size=batch_size(self._device),
            show_progress_bar=False,
            activation_fn=self._raw,
            convert_to_tensor=True,
        )
        values: NDArray[np.float64] = logits.double().cpu().numpy().reshape(-1)
        return values

    def _choose_engine(self, wanted: Engine, weights: str) -> EngineChoice:
        """Choose the engine of the model's first module by comparing the logits of all pairs of texts."""
        pairs = [(one, other) for one in COMPARISON_TEXTS for other in COMPARISON_TEXTS]

        def vectors() -> Vectors:
            return self._logits(pairs)[None].astype(np.float32)

        return choose_module_engine(wanted, self._model[0], "logits", key=weights, device=self._device, vectors=vectors)


def _load_cross_encoder(source: str, device: str, max_length: int) -> CrossEncoder:
    def load(local: bool) -> CrossEncoder:
        from sentence_transformers import CrossEncoder

        kwargs = loading_options(device, local)
        model: CrossEncoder = CrossEncoder(
            source, device=device, max_length=max_length, local_files_only=local, model_kwargs=kwargs
        )
        return model

    return load_model("reranker", source, load, is_cached=cached_file(source, "config.json") is not None)
