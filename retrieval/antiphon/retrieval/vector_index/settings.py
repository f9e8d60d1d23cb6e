"""Settings of vector search by name: exact, or approximate with parameters that suit the number of vectors."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import log2, sqrt

FLAT_NUMBERS = 50_000_000
"""Up to this many numbers (200 MB), exact search is the fastest search and needs no training."""

NAMES = ("auto", "flat", "compact", "paper")
PER_LIST = 39
"""The number of training vectors that FAISS needs for each list of an inverted file."""

EXACT_ROWS = 16_384
"""If a filter allows at most this many rows, scoring each is faster than searching lists, and exact."""

_PAPER_LISTS, _PAPER_PROBES = 4096, 16
_DIMS = 256  # dimension after the rotation: 4 numbers for each of 64 bytes
_GRAPH_LISTS = 16_384  # with more lists, a graph finds the nearest ones faster than comparing all
_RESCORED = 3

logger = logging.getLogger("antiphon.retrieval")


@dataclass(frozen=True, slots=True)
class IndexSetting:
    """One way to search vectors.

    Attributes:
        name: The name of the setting.
        factory: FAISS's factory string; "Flat" is exact search.
        rotated: The dimension after a rotation to the principal axes, which may reduce it; 0: no rotation.
        probes: The number of lists that a query searches. None: as many as the target recall needs on a sample.
        rescored: ``rescored * k`` candidates are rescored with their stored vectors, or more if no number of probes
            reaches the target recall. 0: none, scores are FAISS's estimates.
        why: The reason for the setting.
        exact_rows: If a filter allows at most this many rows, all of them are scored exactly.
        in_memory: An index whose vectors have at most this many numbers in total is read into memory when it is opened;
            a larger one is memory-mapped.
    """

    name: str
    factory: str
    rotated: int = 0
    probes: int | None = None
    rescored: int = 0
    why: str = ""
    exact_rows: int = EXACT_ROWS
    in_memory: int = FLAT_NUMBERS

    @property
    def is_flat(self) -> bool:
        """Whether the search is exact and needs no training."""
        return self.factory == "Flat"


def choose_setting(name: str | IndexSetting, count: int, dim: int, *, gpu: bool = False) -> IndexSetting:
    """Return the setting with this name for a number of vectors.

    ``auto`` is ``flat`` up to 50 million numbers, and ``compact`` above. ``flat`` is exact search. ``compact`` keeps 64
    bytes of each vector in memory and rescores the best candidates from disk. ``paper`` is IVF4096,PQ64 with 16 probes.
    Any other name is a factory string of FAISS.

    Args:
        name: The name, or a setting, which is returned unchanged.
        count: The number of vectors.
        dim: Their dimension.
        gpu: Search on a GPU; FAISS supports only codes of 8 bits there.

    Raises:
        ValueError: ``paper`` cannot cut vectors of this dimension into 64 pieces.
    """
    if isinstance(name, IndexSetting):
        return name
    numbers = count * dim
    size = f"{count:,} vectors of {dim:,} are {numbers / 1e6:,.1f} million numbers"
    if name == "auto":
        if numbers <= FLAT_NUMBERS:
            return IndexSetting(name, "Flat", why=f"{size}: up to {FLAT_NUMBERS // 10**6} million exact search is best")
        return _compact(name, count, dim, f"{size}, more than {FLAT_NUMBERS // 10**6} million", gpu)
    if name in ("flat", "Flat"):
        return IndexSetting(name, "Flat", why="exact search was asked for")
    if name == "compact":
        return _compact(name, count, dim, "it was asked for", gpu)
    return _paper(count, dim) if name == "paper" else IndexSetting(name, name, why="this factory string was asked for")


def _compact(name: str, count: int, dim: int, why: str, gpu: bool) -> IndexSetting:
    """Rotation by principal axes, inverted lists, a product quantizer with 64 bytes, rescoring with float16 vectors."""
    lists = _power_of_two(4 * sqrt(count), at_most=count / PER_LIST)
    piece = 4 if gpu else 2  # numbers per code of 8 or 4 bits, so that 256 numbers take 64 bytes
    rotated = min(_DIMS, dim - dim % piece) or 1
    pieces = max(1, rotated // piece)
    codes = f"PQ{pieces}" if gpu else f"PQ{pieces}x4fsr"
    graph = "_HNSW32" if lists >= _GRAPH_LISTS and not gpu else ""
    reason = (
        f"{why}; {lists:,} lists: a power of two near 4 * sqrt({count:,}), with {PER_LIST} vectors or more for each"
    )
    return IndexSetting(name, f"IVF{lists}{graph},{codes}", rotated, None, _RESCORED, reason)


def _paper(count: int, dim: int) -> IndexSetting:
    if dim % 64:
        raise ValueError(
            f"The setting 'paper' cuts a vector into 64 equal pieces, and {dim} numbers are no multiple of 64; "
            "use 'auto' or 'compact'."
        )
    lists = _power_of_two(_PAPER_LISTS, at_most=count / PER_LIST)
    why = "the paper's setting was asked for"
    if lists < _PAPER_LISTS:
        why += f"; {lists} lists instead of 4,096, which need {PER_LIST} vectors each and so {PER_LIST * 4096:,} in all"
        logger.warning("%s vectors: %s", f"{count:,}", why)
    return IndexSetting("paper", f"IVF{lists},PQ64", 0, min(_PAPER_PROBES, lists), 0, why)


def _power_of_two(wanted: float, *, at_most: float) -> int:
    """Return the power of two nearest to ``wanted`` on a logarithmic scale, at least 1 and at most ``at_most``."""
    return min(1 << round(log2(max(1, wanted))), 1 << int(log2(max(1, at_most))))
