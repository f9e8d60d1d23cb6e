"""The vectors that indexes are compared on: synthetic, from a file, of texts. Knows nothing of indexes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antiphon.accel.files import write_file
from antiphon.pipelines.progress import Progress
from antiphon.retrieval.vectors import Vectors, normalized

if TYPE_CHECKING:
    from antiphon.retrieval import Embedder

SPECTRUM = -0.6
"""Axis ``i`` of the synthetic vectors has a spread of i^-0.6: 90 % of the variance of 1,024 lies in about 220."""

_BLOCK = 65_536
_PER_CLUSTER = 50


def load_vectors(
    texts: Path | None, file: Path | None, embedder: str, *, count: int, dim: int, report: Progress | None = None
) -> Vectors:
    """Vectors of texts or of a file, or synthetic ones; texts that were embedded into ``file`` once are read from it.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: the file holds no array of vectors, or ``count`` or ``dim`` is no size.
    """
    if file is not None and (file.exists() or texts is None):
        vectors: Vectors = np.load(file, allow_pickle=False)
        return normalized(vectors)
    if texts is None:
        return synthetic_vectors(count, dim)
    from antiphon.retrieval import resolve

    made = embedded_lines(texts, resolve(embedder), report=report)
    if file is not None:
        write_file(file, lambda out: np.save(out, made, allow_pickle=False), mode=None)
    return made


def synthetic_vectors(count: int, dim: int, *, seed: int = 0) -> Vectors:
    """Vectors of shape (count, dim) and length 1 in clusters of about 50, with a falling spectrum; made block by block.

    Raises:
        ValueError: ``count`` or ``dim`` is below 1.
    """
    if count < 1 or dim < 1:
        raise ValueError(f"{count} vectors of {dim} numbers; both are whole numbers from 1.")
    draw = np.random.default_rng(seed)
    spread = (np.arange(1, dim + 1) ** SPECTRUM).astype(np.float32)
    centres = draw.standard_normal((max(1, count // _PER_CLUSTER), dim), np.float32)
    vectors = np.empty((count, dim), np.float32)
    for first in range(0, count, _BLOCK):
        block = vectors[first : first + _BLOCK]
        draw.standard_normal(out=block, dtype=np.float32)
        block += centres[draw.integers(len(centres), size=len(block))]
        block *= spread
        block /= np.linalg.norm(block, axis=1, keepdims=True)
    return vectors


def embedded_lines(folder: Path, embedder: Embedder, *, report: Progress | None = None) -> Vectors:
    """The vectors of all different lines of the files in a folder, of shape (lines, dim).

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: no file of it can be read.
    """
    from antiphon.retrieval import load_documents

    tell = report or (lambda stage, done, total: None)
    documents = load_documents([folder], progress=report).documents
    lines = sorted({line.strip() for document in documents for line in document.text.splitlines()} - {""})
    lines.sort(key=len)  # texts of like length to a batch
    blocks = []
    for first in range(0, len(lines), 1024):
        tell("embed", first, len(lines))
        blocks.append(embedder.embed_documents(lines[first : first + 1024]))
    tell("embed", len(lines), len(lines))
    return np.concatenate(blocks)


def held_out(vectors: Vectors, count: int, *, seed: int = 0) -> tuple[Vectors, Vectors]:
    """All vectors but ``count`` of them, and these as queries; the array given is rearranged, so as not to be copied.

    Raises:
        ValueError: that would leave none, or there is none to hold out.
    """
    if not 0 < count < len(vectors):
        raise ValueError(f"{count} queries of {len(vectors)} vectors; some must be left to search, and some to ask.")
    asked = np.sort(np.random.default_rng(seed).choice(len(vectors), count, replace=False))
    queries = vectors[asked]
    left = len(vectors) - count
    stayers = np.setdiff1d(np.arange(left, len(vectors)), asked)
    vectors[asked[asked < left]] = vectors[stayers]
    return vectors[:left], queries
