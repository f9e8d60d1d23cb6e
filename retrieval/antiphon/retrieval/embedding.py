"""Embed each text once, in blocks. The vectors of an interrupted run are saved for the next run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from antiphon.retrieval.embedders.protocol import Embedder
from antiphon.retrieval.index_folder.unfinished import save_unfinished
from antiphon.retrieval.load import Progress
from antiphon.retrieval.vector_index.flat import Vectors, normalized

BLOCK = 128
"""The number of texts between two progress reports; overridden by an embedder's ``block``."""


def embed_resumably(
    texts: Sequence[str],
    embedder: Embedder,
    known: dict[str, Vectors],
    report: Progress,
    out: Path,
) -> Vectors:
    """Return one vector per text. If the run is interrupted, its vectors are saved and the next run reuses them.

    Args:
        known: Known vectors, by text.
        report: Called with the stage ``embed``.
        out: The index folder, in which the vectors of an interrupted run are saved.
    """
    found = dict(known)
    try:
        return embed_texts(texts, embedder, found, report)
    except BaseException:
        if len(found) > len(known):
            save_unfinished(out, embedder.fingerprint, found)
        raise


def embed_texts(texts: Sequence[str], embedder: Embedder, found: dict[str, Vectors], report: Progress) -> Vectors:
    """Return one normalized vector per text, and add new vectors to ``found``.

    Equal texts are embedded once. Longer texts are embedded first, so that the texts of a batch
    have similar lengths.

    Args:
        found: The known vectors, by text.
        report: Called with the stage ``embed``.
    """
    new = sorted({text for text in texts if text not in found}, key=lambda text: (-len(text), text))
    size = getattr(embedder, "block", BLOCK)
    for first in range(0, len(new), size):
        report("embed", first, len(new))
        block = new[first : first + size]
        found.update(zip(block, normalized(embedder.embed_documents(block), dim=embedder.dim), strict=True))
    report("embed", len(new), len(new))
    return np.stack([found[text] for text in texts]) if texts else np.empty((0, embedder.dim), np.float32)
