"""BGE-M3 with all three outputs: dense vectors, a lexical weight per word piece, and a vector per token.

sentence-transformers supports the dense vectors only; its `SparseEncoder` and `MultiVectorEncoder` would add random
weights. The files ``sparse_linear.pt`` and ``colbert_linear.pt`` next to the model contain the two linear heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embedders.protocol import TokenVectors
from antiphon.retrieval.embedders.sentence_transformer import SentenceTransformerEmbedder
from antiphon.retrieval.encoder_runtime.engine_selection import Engine
from antiphon.retrieval.encoder_runtime.hub import HUB_NAMES, load_model
from antiphon.retrieval.vector_index.flat import Vectors, normalized


class BgeM3Embedder:
    """BGE-M3 with token vectors for late interaction.

    Its dense vectors equal those of `SentenceTransformerEmbedder`, so either embedder can open an index of the other.

    Args:
        model: ``bge-m3``, a name on the hub, or a folder with the same layout.
        device: Such as ``cuda`` or ``cpu``. None: a GPU if there is one.
        max_length: The longest text in tokens, including special tokens; longer texts are cut off. None: 512.
        local_files_only: Do not access the hub.
        engine: The engine to use; see `Engine`. The attribute ``engine`` has the chosen engine and the reason.

    Raises:
        ValueError: The model or its heads cannot be loaded, the heads do not fit the model, or OpenVINO is requested
            and cannot run it.
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
        self.vocabulary_size = self._dense.vocabulary_size

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without special tokens."""
        return self._dense.count_tokens(text)

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        """Return the normalized state of the first token of each text."""
        return self._dense.embed_documents(texts)

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Return the same vectors as for documents."""
        return self._dense.embed_queries(texts)

    def token_ids(self, texts: Sequence[str]) -> list[NDArray[np.int64]]:
        """Return the word pieces of each text, up to the length limit."""
        return [ids[self._is_word(ids)] for ids in self._dense.token_rows(texts)]

    def token_vectors(self, texts: Sequence[str]) -> list[TokenVectors]:
        """Return the output of the ColBERT head for each token (Chen et al. 2024, section 3.1)."""
        weight, bias = self._colbert
        found = []
        for ids, states in self._dense.token_states(texts):
            kept = self._is_word(ids)
            found.append(TokenVectors(ids[kept], normalized(states[kept] @ weight.T + bias, dim=len(weight))))
        return found

    def lexical_weights(self, texts: Sequence[str]) -> list[dict[int, float]]:
        """Return for each text the lexical weight of each token id: the maximum of relu(head), without zeros."""
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
    """Return the sum over shared tokens of the products of their weights (Chen et al. 2024, section 3.1).

    Args:
        question: The lexical weights of a question.
        passage: The lexical weights of a passage.
    """
    return sum(weight * passage[token] for token, weight in question.items() if token in passage)


def _head(model: str | Path, file: str, width: int, local_files_only: bool) -> tuple[Vectors, Vectors]:
    """Load a linear layer from a file: its weight of shape (out, width) and its bias of shape (out,)."""
    source = HUB_NAMES.get(str(model), str(model))

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
        raise  # the file is missing
    except Exception as error:  # torch raises many kinds of errors for files that are not its own
        raise ValueError(
            f"{path} holds no linear head (weight and bias, as torch saves them); fetch it again. ({error!r:.200})"
        ) from error
    if weight.ndim != 2 or weight.shape[1] != width or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{path} holds a weight of {weight.shape} and a bias of {bias.shape}, but the model's states have {width} "
            f"numbers: (n, {width}) and (n,) are needed. It belongs to another model."
        )
    return weight, bias
