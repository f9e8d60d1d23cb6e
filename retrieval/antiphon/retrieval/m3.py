"""BGE-M3 whole: beside its dense vectors, a weight for each word piece and a vector for each token.

sentence-transformers knows the dense vectors alone; its `SparseEncoder` and `MultiVectorEncoder` would put random
weights on this model. The two linear heads lie beside its weights as ``sparse_linear.pt`` and ``colbert_linear.pt``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embed import TokenVectors
from antiphon.retrieval.encoder_engine import Engine
from antiphon.retrieval.hub import load_model
from antiphon.retrieval.sentence_transformer import SentenceTransformerEmbedder
from antiphon.retrieval.vectors import Vectors, normalized

_HUB = "BAAI/bge-m3"


class M3Embedder:
    """BGE-M3, or a folder of its layout; where late interaction is wanted it gives the vectors of tokens.

    Its dense vectors are those of `SentenceTransformerEmbedder`, so that an index of the one opens with the other, and
    so is its ``engine``.

    Raises:
        ValueError: the model cannot be had, or its heads cannot, or are no heads of it; or OpenVINO was asked for and
            does not do here.
    """

    def __init__(
        self,
        model: str | Path = "bge-m3",
        *,
        device: str | None = None,
        max_length: int | None = None,
        local_files_only: bool = False,
        engine: Engine = "auto",
    ) -> None:
        self._dense = SentenceTransformerEmbedder(
            model, device=device, max_length=max_length, local_files_only=local_files_only, engine=engine
        )
        self.engine = self._dense.engine
        self._sparse, self._colbert = (
            _head(model, f"{name}_linear.pt", self._dense.dim, local_files_only) for name in ("sparse", "colbert")
        )
        self.name, self.dim, self.fingerprint = self._dense.name, self._dense.dim, self._dense.fingerprint
        self.max_tokens = self._dense.max_tokens
        self.vocabulary = self._dense.vocabulary

    def count_tokens(self, text: str) -> int:
        """How many tokens the text has, without special tokens."""
        return self._dense.count_tokens(text)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """The first token's state, normalized."""
        return self._dense.embed_documents(texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """The same as for documents."""
        return self._dense.embed_queries(texts)

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """The word pieces of each text, up to where the model stops reading."""
        return [ids[self._is_word(ids)] for ids in self._dense.token_rows(texts)]

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """The vectors of late interaction: the colbert head over each token (Chen et al. 2024, section 3.1)."""
        weight, bias = self._colbert
        found = []
        for ids, states in self._dense.token_states(texts):
            kept = self._is_word(ids)
            found.append(TokenVectors(ids[kept], normalized(states[kept] @ weight.T + bias, dim=len(weight))))
        return found

    def lexical_weights(self, texts: Sequence[str]) -> list[dict[int, float]]:
        """Of each text, how much each token id matters: the largest relu(head) of its places; zeros are left out."""
        weight, bias = self._sparse
        special = self._dense.special_ids
        found = []
        for ids, states in self._dense.token_states(texts):
            weights: dict[int, float] = {}
            for token, value in zip(ids, (states @ weight.T + bias)[:, 0], strict=True):
                if value > 0 and token not in special:
                    weights[int(token)] = max(float(value), weights.get(int(token), 0.0))
            found.append(weights)
        return found

    def _is_word(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        return ~np.isin(ids, list(self._dense.special_ids - {self._dense.unknown_id}))


def lexical_score(question: Mapping[int, float], passage: Mapping[int, float]) -> float:
    """The sum over shared tokens of the products of their weights (Chen et al. 2024, section 3.1)."""
    return sum(weight * passage[token] for token, weight in question.items() if token in passage)


def _head(model: str | Path, file: str, width: int, local_files_only: bool) -> tuple[Vectors, Vectors]:
    """Weight of shape (out, width) and bias of shape (out,) of a linear layer that a file holds."""
    source = _HUB if str(model) == "bge-m3" else str(model)

    def load(local: bool) -> tuple[Vectors, Vectors]:
        from huggingface_hub import hf_hub_download

        path = Path(source) / file
        if not Path(source).is_dir():
            path = Path(hf_hub_download(source, file, local_files_only=local))
        return _linear(path, width)

    return load_model("head of the embedder", source, load, is_cached=True, local_files_only=local_files_only)


def _linear(path: Path, width: int) -> tuple[Vectors, Vectors]:
    import torch

    try:
        head = torch.load(path, map_location="cpu", weights_only=True)
        weight, bias = (head[name].float().numpy() for name in ("weight", "bias"))
    except OSError:
        raise  # it is not there, which is another matter
    except Exception as error:  # torch names no kind of error for a file that is none of its own
        raise ValueError(
            f"{path} holds no linear head (weight and bias, as torch saves them); fetch it again. ({error!r:.200})"
        ) from error
    if weight.ndim != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{path} holds a weight of {weight.shape} and a bias of {bias.shape}, but the model's states have {width} "
            f"numbers: (n, {width}) and (n,) are needed. It belongs to another model."
        )
    return weight, bias
