"""How vectors are searched, by name: what a setting means for so many vectors of so many numbers. Runs no FAISS."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import log2, sqrt

FLAT_NUMBERS = 50_000_000
"""Up to so many numbers (200 MB) the exact search is both the fastest and the best."""

NAMES = ("auto", "flat", "compact", "paper")
PER_LIST = 39
"""FAISS asks for so many training vectors for each list of an inverted file."""

EXACT_ROWS = 16_384
"""Up to so many rows that a filter allows, scoring each is faster than looking for them in lists, and exact."""

_PAPER_LISTS, _PAPER_PROBES = 4096, 16
_DIMS = 256  # of the rotation: 4 for each of 64 bytes
_GRAPH_LISTS = 16_384  # from here on a graph finds the nearest lists faster than a comparison with all of them
_RESCORED = 3

logger = logging.getLogger("antiphon.retrieval")


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to search vectors.

    ``factory`` is FAISS's description of the index ("Flat": none, the vectors themselves are searched). ``rotated`` is
    the number of dimensions that are kept before it, by principal axes; 0 keeps the vectors as they are. ``probes``
    lists are looked into for each query; None: as many as a sample needs for the recall that is aimed at. The best
    ``rescored`` * k are scored again by their own vectors, and more where no number of probes reaches that recall; 0:
    the scores are FAISS's estimates. ``why`` says who chose. Where a filter allows at most ``exact_rows`` rows, each is
    scored, so that the search is exact. An opened index of at most ``in_memory`` numbers is read into memory; a larger
    one is mapped from its file.
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
        """Whether the search is exact, without anything to train."""
        return self.factory == "Flat"


def choose(name: str | Setting, count: int, dim: int, *, gpu: bool = False) -> Setting:
    """What ``name`` means for ``count`` vectors of ``dim`` numbers.

    ``auto`` is ``flat`` up to 50 million numbers, and ``compact`` above; ``flat`` is exact; ``compact`` keeps 64 bytes
    of each vector in memory and scores the best again from disk; ``paper`` is IVF4096,PQ64 with 16 probes; anything
    else is a factory string of FAISS. On a GPU ``compact`` has codes of 8 bits, which FAISS knows there.

    Raises:
        ValueError: ``paper`` cannot cut vectors of ``dim`` numbers into 64 pieces.
    """
    if isinstance(name, Setting):
        return name
    numbers = count * dim
    size = f"{count:,} vectors of {dim:,} are {numbers / 1e6:,.1f} million numbers"
    if name == "auto":
        if numbers <= FLAT_NUMBERS:
            return Setting(name, "Flat", why=f"{size}: up to {FLAT_NUMBERS // 10**6} million exact search is best")
        return _compact(name, count, dim, f"{size}, more than {FLAT_NUMBERS // 10**6} million", gpu)
    if name in ("flat", "Flat"):
        return Setting(name, "Flat", why="exact search was asked for")
    if name == "compact":
        return _compact(name, count, dim, "it was asked for", gpu)
    return _paper(count, dim) if name == "paper" else Setting(name, name, why="this factory string was asked for")


def _compact(name: str, count: int, dim: int, why: str, gpu: bool) -> Setting:
    """Rotated by principal axes, inverted lists, 64 bytes of product quantiser, scored again from float16 vectors."""
    lists = _power_of_two(4 * sqrt(count), at_most=count / PER_LIST)
    piece = 4 if gpu else 2  # numbers to a code of 8 bits or of 4: 64 bytes for 256 numbers
    rotated = min(_DIMS, dim - dim % piece) or 1
    pieces = max(1, rotated // piece)
    codes = f"PQ{pieces}" if gpu else f"PQ{pieces}x4fsr"
    graph = "_HNSW32" if lists >= _GRAPH_LISTS and not gpu else ""
    reason = (
        f"{why}; {lists:,} lists: a power of two near 4 * sqrt({count:,}), with {PER_LIST} vectors or more for each"
    )
    return Setting(name, f"IVF{lists}{graph},{codes}", rotated, None, _RESCORED, reason)


def _paper(count: int, dim: int) -> Setting:
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
    return Setting("paper", f"IVF{lists},PQ64", 0, min(_PAPER_PROBES, lists), 0, why)


def _power_of_two(wanted: float, *, at_most: float) -> int:
    """The power of two nearest to ``wanted`` by its logarithm, and no more than ``at_most``; at least 1."""
    return min(1 << round(log2(max(1, wanted))), 1 << int(log2(max(1, at_most))))
