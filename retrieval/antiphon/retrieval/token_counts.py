"""Count the passages that contain each token, for the IDF weights of late interaction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from antiphon.retrieval.embedders.protocol import Embedder, TokenEmbedder
from antiphon.retrieval.errors import IndexMismatch
from antiphon.retrieval.index_folder.store import StoredIndex
from antiphon.retrieval.passage import Passage

_BLOCK = 128  # texts that are tokenized at once


def token_counts(texts: Sequence[str], embedder: TokenEmbedder) -> NDArray[np.int64]:
    """Return, for each token id, the number of texts that contain it."""
    counts = np.zeros(embedder.vocabulary_size, np.int64)
    for first in range(0, len(texts), _BLOCK):
        for ids in embedder.token_ids(texts[first : first + _BLOCK]):
            counts[np.unique(ids)] += 1
    return counts


def require_token_embedder(store: StoredIndex, embedder: Embedder) -> None:
    """Raise an error if an index stores token counts, but the embedder of new passages has no tokenizer.

    Raises:
        IndexMismatch: The index stores token counts, but the embedder has no tokenizer.
    """
    if store.token_counts is not None and not isinstance(embedder, TokenEmbedder):
        raise IndexMismatch(
            f"The index in {store.folder} counts tokens for late interaction, and {type(embedder).__name__} has none: "
            "the change would lose them. Give an embedder with token_ids, such as the one that made the index, or make "
            "the index again."
        )


def recounted(
    counts: NDArray[np.int64] | None, removed: Sequence[Passage], added: Sequence[Passage], embedder: Embedder
) -> NDArray[np.int64] | None:
    """Return the token counts after a change; None if the index has no token counts."""
    if counts is None or not isinstance(embedder, TokenEmbedder):
        return None
    lost, new = ([passage.text_with_headings for passage in passages] for passages in (removed, added))
    changed: NDArray[np.int64] = counts - token_counts(lost, embedder) + token_counts(new, embedder)
    return changed
