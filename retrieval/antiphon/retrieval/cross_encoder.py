"""A cross-encoder of sentence-transformers as a reranker. Knows nothing of indexes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.device import batch_size, pick
from antiphon.retrieval.encoder_engine import PROBES, Engine, EngineChoice, choose_transformers_engine
from antiphon.retrieval.hub import cached, load_model, loading_options, weights_of
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.rerank import ranked
from antiphon.retrieval.vectors import Vectors

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

SHORT_NAMES = {"bge-reranker-v2-m3": "BAAI/bge-reranker-v2-m3"}
"""Models that have a name of their own here, and their names on the hub."""


class CrossEncoderReranker:
    """A model that reads question and passage together; slow on a CPU, and the best order there is.

    ``model`` is ``bge-reranker-v2-m3``, a name on the hub, or a folder. Passages are ordered by the model's logits;
    the scores they carry are those through a sigmoid, between 0 and 1. ``engine`` says what computes the model (see
    `Engine`); the attribute of that name, what was taken, and why.

    Raises:
        ValueError: the model cannot be had, or gives more than one number for a pair; or OpenVINO was asked for and
            does not do here.
    """

    def __init__(
        self,
        model: str | Path = "bge-reranker-v2-m3",
        *,
        device: str | None = None,
        depth: int | None = None,
        max_length: int = 512,
        local_files_only: bool = False,
        engine: Engine = "auto",
    ) -> None:
        import torch

        self.name = str(model)
        self._device = pick(device)
        self.depth = depth or (20 if self._device == "cpu" else 100)
        self._raw = torch.nn.Identity()  # sigmoids of good passages all round to 1 in half precision
        source = SHORT_NAMES.get(self.name, self.name)
        self._model = _load_cross_encoder(source, self._device, max_length, local_files_only)
        if self._model.num_labels != 1:
            raise ValueError(f"{self.name} gives {self._model.num_labels} numbers for a pair; a reranker gives one.")
        self.engine = self._choose(engine, weights_of(source))

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The passages in the order of the model's logits."""
        if not passages:
            return []
        pairs = [(question, passage.text_with_headings) for passage in passages]
        values = self._logits(pairs)
        return ranked(passages, values.tolist(), (0.5 * (1 + np.tanh(values / 2))).tolist())

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

    def _choose(self, wanted: Engine, weights: str) -> EngineChoice:
        """Let an engine compute what the first module asks of its model; logits of all probes are one vector."""
        pairs = [(one, other) for one in PROBES for other in PROBES]

        def vectors() -> Vectors:
            return self._logits(pairs)[None].astype(np.float32)

        return choose_transformers_engine(
            wanted, self._model[0], "logits", key=weights, device=self._device, vectors=vectors
        )


def _load_cross_encoder(source: str, device: str, max_length: int, local_files_only: bool) -> CrossEncoder:
    def load(local: bool) -> CrossEncoder:
        from sentence_transformers import CrossEncoder

        kwargs = loading_options(device, local)
        model: CrossEncoder = CrossEncoder(
            source, device=device, max_length=max_length, local_files_only=local, model_kwargs=kwargs
        )
        return model

    is_cached = cached(source, "config.json") is not None
    return load_model("reranker", source, load, is_cached=is_cached, local_files_only=local_files_only)
