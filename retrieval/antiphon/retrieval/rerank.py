"""Passages in better order, by reading them with the question: late interaction, or a cross-encoder."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.device import batch_size, pick, precision
from antiphon.retrieval.embed import Embedder, TokenEmbedder, TokenVectors
from antiphon.retrieval.hub import cached, load_model
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vectors import Vectors

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

_SHORT_NAMES = {"bge-reranker-v2-m3": "BAAI/bge-reranker-v2-m3"}
KNOWN = ("auto", "maxsim", "bge-reranker-v2-m3")
"""The names of rerankers; besides them, any folder or hub name ``owner/model`` of a cross-encoder."""


class Reranker(Protocol):
    """Whoever puts passages into a better order. ``depth`` is how many candidates it wants to see."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def depth(self) -> int:
        """How many candidates are worth reading for one question."""

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The same passages with new scores, best first; equal scores keep their order."""


class MaxSim:
    """Late interaction: each token of the question looks for its best match in the passage; rare tokens weigh more.

    The score is the one that a passage comes with plus ``weight`` times the IDF-weighted mean of those matches, each
    in standard deviations from its mean over the candidates. It needs no further model, and reads a passage once:
    token vectors of the last ``remembered`` passages are kept.
    """

    name = "maxsim"

    def __init__(
        self,
        embedder: TokenEmbedder,
        token_counts: NDArray[np.int64] | None = None,
        passages: int = 0,
        *,
        depth: int = 20,
        weight: float = 0.5,
        remembered: int = 512,
    ) -> None:
        if depth < 1 or weight < 0:
            raise ValueError(f"depth is {depth} and weight {weight}; depth is from 1, weight from 0.")
        self.depth = depth
        self._embedder = embedder
        self._weight = weight
        counts = np.zeros(embedder.vocabulary) if token_counts is None else token_counts
        self._idf = np.log1p((passages - counts + 0.5) / (counts + 0.5)).astype(np.float32)
        self._seen: OrderedDict[str, Vectors] = OrderedDict()
        self._remembered = remembered
        self._lock = threading.Lock()

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The passages in the order of their mixed score."""
        query = self._embedder.token_vectors([question])[0]
        weights = self._idf[query.ids]
        total = float(weights.sum()) or 1.0
        near = [float(weights @ self._best(query, vectors)) / total for vectors in self._read(passages)]
        before = _standardized([passage.score or 0.0 for passage in passages])
        scores = (before + self._weight * _standardized(near)).tolist()
        return ranked(passages, scores, scores)

    @staticmethod
    def _best(query: TokenVectors, vectors: Vectors) -> Vectors:
        if not len(vectors):
            return np.zeros(len(query.ids), np.float32)
        best: Vectors = (query.vectors @ vectors.T.astype(np.float32)).max(axis=1)
        return best

    def _read(self, passages: Sequence[Passage]) -> list[Vectors]:
        """The token vectors of each passage, computed where they are not remembered."""
        with self._lock:
            known = {p.read: self._seen[p.read] for p in passages if p.read in self._seen}
        new = [text for text in dict.fromkeys(p.read for p in passages) if text not in known]
        read = dict(zip(new, (t.vectors.astype(np.float16) for t in self._embedder.token_vectors(new)), strict=True))
        known |= read  # type: ignore[arg-type]
        with self._lock:
            for passage in passages:
                self._seen[passage.read] = known[passage.read]
                self._seen.move_to_end(passage.read)
            while len(self._seen) > self._remembered:
                self._seen.popitem(last=False)
        return [known[passage.read] for passage in passages]


class CrossEncoderReranker:
    """A model that reads question and passage together; slow on a CPU, and the best order there is.

    ``model`` is ``bge-reranker-v2-m3``, a name on the hub, or a folder. Passages are ordered by the model's logits;
    the scores they carry are those through a sigmoid, between 0 and 1.

    Raises:
        ValueError: the model cannot be had, or gives more than one number for a pair.
    """

    def __init__(
        self,
        model: str | Path = "bge-reranker-v2-m3",
        *,
        device: str | None = None,
        depth: int | None = None,
        max_length: int = 512,
        local_files_only: bool = False,
    ) -> None:
        import torch

        self.name = str(model)
        self._device = pick(device)
        self.depth = depth or (20 if self._device == "cpu" else 100)
        self._raw = torch.nn.Identity()  # sigmoids of good passages all round to 1 in half precision
        source = _SHORT_NAMES.get(self.name, self.name)
        self._model = _load_cross_encoder(source, self._device, max_length, local_files_only)
        if self._model.num_labels != 1:
            raise ValueError(f"{self.name} gives {self._model.num_labels} numbers for a pair; a reranker gives one.")

    def rerank(self, question: str, passages: Sequence[Passage]) -> list[Passage]:
        """The passages in the order of the model's logits."""
        if not passages:
            return []
        pairs = [(question, passage.read) for passage in passages]
        logits = self._model.predict(
            pairs,
            batch_size=batch_size(self._device),
            show_progress_bar=False,
            activation_fn=self._raw,
            convert_to_tensor=True,
        )
        values = logits.double().cpu().numpy().reshape(-1)
        return ranked(passages, values.tolist(), (0.5 * (1 + np.tanh(values / 2))).tolist())


def resolve_reranker(
    name: Reranker | str | None,
    embedder: Embedder,
    *,
    token_counts: NDArray[np.int64] | None = None,
    passages: int = 0,
    device: str | None = None,
) -> Reranker | None:
    """The reranker of that name; ``None`` is none.

    ``auto`` is bge-reranker-v2-m3 where BGE-M3 runs on a GPU, late interaction where the embedder offers token
    vectors, and otherwise none.

    Raises:
        ValueError: no reranker has that name, or it does not suit the embedder.
    """
    if not isinstance(name, str):
        return name
    if name == "auto":
        name = _suited(embedder, device)
    if name == "none":
        return None
    if name == "maxsim":
        if not isinstance(embedder, TokenEmbedder):
            raise ValueError(f"maxsim needs the vectors of single tokens, and the embedder {embedder.name} has none.")
        return MaxSim(embedder, token_counts, passages)
    if name in _SHORT_NAMES or (name and Path(name).is_dir()) or re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        return CrossEncoderReranker(name, device=device)
    raise ValueError(
        f"No reranker is named {name!r}; known are {', '.join(KNOWN)}, none, a folder, or a hub model as owner/model."
    )


def _standardized(scores: Sequence[float]) -> NDArray[np.float64]:
    """How many standard deviations each is from the mean; zeros where they do not differ."""
    values = np.asarray(scores, np.float64)
    spread = float(values.std()) if len(values) else 0.0
    return (values - values.mean()) / spread if spread else np.zeros_like(values)


def ranked(passages: Sequence[Passage], keys: Sequence[float], scores: Sequence[float]) -> list[Passage]:
    """The passages by falling key, each with its score; equal keys keep their order."""
    order = sorted(range(len(passages)), key=lambda place: -keys[place])
    return [replace(passages[place], score=float(scores[place])) for place in order]


def _load_cross_encoder(source: str, device: str, max_length: int, local_files_only: bool) -> CrossEncoder:
    def load(local: bool) -> CrossEncoder:
        from sentence_transformers import CrossEncoder

        kwargs = {"dtype": precision(device)}
        model: CrossEncoder = CrossEncoder(
            source, device=device, max_length=max_length, local_files_only=local, model_kwargs=kwargs
        )
        return model

    is_cached = cached(source, "config.json") is not None
    return load_model("reranker", source, load, is_cached=is_cached, local_files_only=local_files_only)


def _suited(embedder: Embedder, device: str | None) -> str:
    if embedder.name in ("bge-m3", "BAAI/bge-m3") and pick(device) != "cpu":
        return "bge-reranker-v2-m3"
    return "maxsim" if isinstance(embedder, TokenEmbedder) else "none"
