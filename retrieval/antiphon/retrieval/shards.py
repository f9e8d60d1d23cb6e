"""Several indexes as one: searched one after the other, or merged into one folder. Knows nothing of how they search."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antiphon.retrieval.collection import PassageIndex, Where, last_of_each_id, require_same_embedder
from antiphon.retrieval.embed import Embedder
from antiphon.retrieval.index import index_passages
from antiphon.retrieval.local_index import same_embedder
from antiphon.retrieval.passage import Passage
from antiphon.retrieval.settings import Setting
from antiphon.retrieval.store import read_store
from antiphon.retrieval.vectors import Vectors


class Shards:
    """Parts of one index, all made by one embedder; their best passages are the best of the whole.

    Scores of vectors are cosines, and compare between parts. Those of words (BM25) are by each part's own word counts:
    they compare where passages were dealt out at random. A passage that several parts have is found once.
    """

    def __init__(self, parts: Sequence[PassageIndex]) -> None:
        if not parts:
            raise ValueError("There is no part to search; give at least 1.")
        self._parts = tuple(parts)

    def nearest(self, vector: Vectors, k: int, where: Where | None = None) -> list[Passage]:
        """The ``k`` nearest passages of all parts, best first."""
        return _best([part.nearest(vector, k, where) for part in self._parts], k)

    def matching(self, question: str, k: int, where: Where | None = None) -> list[Passage]:
        """The passages of all parts that share words with a question, best first."""
        return _best([part.matching(question, k, where) for part in self._parts], k)


def merge_indexes(
    folders: Sequence[str | Path],
    out: str | Path,
    *,
    embedder: Embedder | None = None,
    setting: str | Setting = "auto",
) -> int:
    """One index of the passages of several folders, by the vectors that they hold; returns how many there are.

    Of passages with one id the last folder's counts. ``embedder`` is needed only if it has no known name.

    Raises:
        ValueError: there is no folder, or not one passage, or too few for the setting.
        IndexNotFound, IndexCorrupt: a folder holds no index, or a damaged one.
        IndexMismatch: they were not all made by one embedder, or it cannot be had.
        BlockingIOError: another process is writing to ``out``.
    """
    if not folders:
        raise ValueError("There is no index to merge; give at least 1 folder.")
    stores = [read_store(folder) for folder in folders]
    model = same_embedder(stores[0], embedder, None)
    for store in stores:
        require_same_embedder(f"The index in {store.folder}", store.fingerprint, model.fingerprint)
    passages = [passage for store in stores for passage in store.passages]
    vectors = np.concatenate([store.vectors.astype(np.float32) for store in stores])
    passages, vectors = last_of_each_id(passages, vectors)
    index_passages(passages, out, model, vectors=vectors, setting=setting)
    return len(passages)


def _best(found: Sequence[Sequence[Passage]], k: int) -> list[Passage]:
    """The ``k`` best by score, each id once."""
    passages: dict[str, Passage] = {}
    for passage in sorted((each for part in found for each in part), key=lambda passage: -(passage.score or 0.0)):
        passages.setdefault(passage.id, passage)
    return list(passages.values())[:k]
