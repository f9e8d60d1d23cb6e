"""Several indexes as one: searched one after the other, or merged into one folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antiphon.retrieval.collection import PassageIndex, keep_last_of_each_id, require_same_embedder
from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.filters import MetadataFilter
from antiphon.retrieval.index_folder.store import read_index
from antiphon.retrieval.indexing import index_passages
from antiphon.retrieval.local_index import embedder_of_index
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.vector_index.flat import Vectors
from antiphon.retrieval.vector_index.settings import IndexSetting


class ShardedIndex:
    """Several indexes made by one embedder and searched as one.

    Cosines are comparable between parts. BM25 scores depend on each part's word counts, so they are comparable if the
    passages were distributed at random. A passage that several parts contain is returned once.

    Args:
        parts: At least one index.
    """

    def __init__(self, parts: Sequence[PassageIndex]) -> None:
        if not parts:
            raise ValueError("There is no part to search; give at least 1.")
        self._parts = tuple(parts)

    def vector_search(self, vector: Vectors, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return the ``k`` nearest passages of all parts. See `PassageIndex.vector_search`."""
        return _best([part.vector_search(vector, k, where) for part in self._parts], k)

    def keyword_search(self, question: str, k: int, where: MetadataFilter | None = None) -> list[Passage]:
        """Return passages of all parts that share words with a question. See `PassageIndex.keyword_search`."""
        return _best([part.keyword_search(question, k, where) for part in self._parts], k)


def merge_indexes(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    embedder: Embedder | None = None,
    setting: str | IndexSetting = "auto",
) -> int:
    """Merge several index folders into one, without embedding anything again.

    Args:
        folders: The folders. If several contain a passage with the same id, the last one wins.
        out: The folder of the merged index.
        embedder: The embedder that made them; needed only if it cannot be loaded by its name.
        setting: How the vectors are searched; see `choose_setting`.

    Returns:
        The number of passages.

    Raises:
        ValueError: There is no folder, no passage, or too few passages for the setting.
        IndexNotFound: A folder contains no index.
        IndexCorrupt: An index is damaged.
        IndexMismatch: Different embedders made the indexes, or the embedder cannot be loaded.
        BlockingIOError: Another process is writing to ``out``.
    """
    if not folders:
        raise ValueError("There is no index to merge; give at least 1 folder.")
    stores = [read_index(folder) for folder in folders]
    model = embedder_of_index(stores[0], embedder, None)
    for store in stores:
        require_same_embedder(f"The index in {store.folder}", store.fingerprint, model.fingerprint)
    passages = [passage for store in stores for passage in store.passages]
    vectors = np.concatenate([store.vectors.astype(np.float32) for store in stores])
    passages, vectors = keep_last_of_each_id(passages, vectors)
    index_passages(passages, out, model, vectors=vectors, setting=setting)
    return len(passages)


def _best(found: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    """Return the ``k`` best passages by score, each id once."""
    passages: dict[str, Passage] = {}
    for passage in sorted((each for part in found for each in part), key=lambda passage: -(passage.score or 0.0)):
        passages.setdefault(passage.id, passage)
    return list(passages.values())[:k]
