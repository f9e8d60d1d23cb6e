"""Vectors for the index benchmark: synthetic, from a file, or embedded lines of text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from antiphon.accel.files import write_file
from antiphon.accel.progress import Progress
from antiphon.retrieval.vector_index.flat import Vectors, normalized

if TYPE_CHECKING:
    from antiphon.retrieval import Embedder

SPECTRUM = -0.6
"""Axis ``i`` of the synthetic vectors has standard deviation i^-0.6; 220 of 1,024 axes hold 90 % of the variance."""

_BLOCK = 65_536
_PER_CLUSTER = 50


def load_vectors(
    texts: Path | None, file: Path | None, embedder: str, *, count: int, dim: int, report: Progress | None = None
) -> Vectors:
    """Load or make the vectors to index.

    Args:
        texts: Folder whose lines are embedded; None for no texts.
        file: A .npy file of vectors. With ``texts`` it stores their vectors and is read if it exists.
        embedder: Embedder name, for ``texts``.
        count: Number of synthetic vectors, if neither ``texts`` nor ``file`` is given.
        dim: Dimension of synthetic vectors.
        report: Called with stage, done and total.

    Raises:
        FileNotFoundError: there is no such folder or file.
        ValueError: the file holds no array of vectors, or ``count`` or ``dim`` is below 1.
    """
    if file is not None and (file.exists() or texts is None):
        vectors: Vectors = np.load(file, allow_pickle=False)
        return normalized(vectors)
    if texts is None:
        return synthetic_vectors(count, dim)
    from antiphon.retrieval import load_embedder

    made = embedded_lines(texts, load_embedder(embedder), report=report)
    if file is not None:
        write_file(file, lambda out: np.save(out, made, allow_pickle=False), mode=None)
    return made


def synthetic_vectors(count: int, dim: int, *, seed: int = 0) -> Vectors:
    """Make normalized vectors of shape (count, dim) in clusters of about 50, with a decreasing spectrum.

    Args:
        count: Number of vectors.
        dim: Dimension.
        seed: Seed of the random numbers.

    Raises:
        ValueError: ``count`` or ``dim`` is below 1.
    """
    if count < 1 or dim < 1:
        raise ValueError(f"{count} vectors of dimension {dim} were asked for; both need to be at least 1.")
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
    """Embed the distinct lines of all files in a folder; return vectors of shape (lines, dim).

    Args:
        folder: Folder of documents.
        embedder: Embeds the lines.
        report: Called with stage, done and total.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: no file in it can be read.
    """
    from antiphon.retrieval import load_documents

    tell = report or (lambda stage, done, total: None)
    documents = load_documents([folder], progress=report).documents
    lines = sorted({line.strip() for document in documents for line in document.text.splitlines()} - {""})
    lines.sort(key=len)  # lines of similar length share a batch
    blocks = []
    for first in range(0, len(lines), 1024):
        tell("embed", first, len(lines))
        blocks.append(embedder.embed_documents(lines[first : first + 1024]))
    tell("embed", len(lines), len(lines))
    return np.concatenate(blocks)


def held_out(vectors: Vectors, count: int, *, seed: int = 0) -> tuple[Vectors, Vectors]:
    """Split off random queries; return the remaining vectors and the queries.

    Args:
        vectors: All vectors; this array is reordered in place to avoid a copy.
        count: Number of queries.
        seed: Seed of the random choice.

    Raises:
        ValueError: ``count`` is below 1, or no vector would remain.
    """
    if not 0 < count < len(vectors):
        raise ValueError(
            f"{count} queries cannot be held out of {len(vectors)} vectors; give at least 1, and fewer than all."
        )
    asked = np.sort(np.random.default_rng(seed).choice(len(vectors), count, replace=False))
    queries = vectors[asked]
    left = len(vectors) - count
    stayers = np.setdiff1d(np.arange(left, len(vectors)), asked)
    vectors[asked[asked < left]] = vectors[stayers]
    return vectors[:left], queries
