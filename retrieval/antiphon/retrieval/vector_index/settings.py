"""Choose the settings of vector search: exact, or approximate with parameters for the number of vectors."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

FLAT_NUMBERS = 50_000_000
"""Up to this many numbers in all vectors (200 MB), exact search is fastest, without training."""

NAMES = ("auto", "flat", "compact")
PER_LIST = 39
"""The number of training vectors that FAISS needs for each list of an inverted file."""

EXACT_ROWS = 16_384
"""If a filter allows at most this many rows, scoring all of them is faster than searching lists."""

_DIMS = 256  # dimension after the rotation: 4 numbers for each of 64 bytes
_GRAPH_LISTS = 16_384  # with more lists, a graph finds the nearest ones faster than comparing all
_RESCORED = 3


@dataclass(frozen=True, slots=True)
class IndexSetting:
    """The parameters of one way to search vectors.

    Attributes:
        factory: FAISS's factory string of an inverted file; "Flat" is exact search.
        lists: The number of inverted lists.
        rotated: The dimension after a rotation to the principal axes; 0: no rotation.
        probes: The number of lists that a query searches. None: chosen for the target recall.
        rescored: ``rescored * k`` candidates are rescored with their stored vectors. Training may
            increase the number to reach the target recall. 0: no candidates are rescored, and
            scores are FAISS's estimates.
    """

    name: str
    factory: str
    lists: int = 0
    rotated: int = 0
    probes: int | None = None
    rescored: int = 0
    why: str = ""

    @property
    def is_flat(self) -> bool:
        """Whether the search is exact and needs no training."""
        return self.factory == "Flat"


def choose_setting(name: str | IndexSetting, count: int, dim: int) -> IndexSetting:
    """Return the setting with this name for a number of vectors.

    ``auto`` is ``flat`` up to 50 million numbers in all vectors, and ``compact`` above. ``flat`` is exact search.
    ``compact`` keeps 64 bytes of each vector in memory and rescores the best candidates from disk.

    Args:
        name: The name, or a setting, which is returned unchanged.

    Raises:
        ValueError: There is no setting with this name.
    """
    if isinstance(name, IndexSetting):
        return name
    size = f"{count:,} vectors of {dim:,} are {count * dim / 1e6:,.1f} million numbers"
    most = f"{FLAT_NUMBERS // 10**6} million"
    if name == "auto" and count * dim > FLAT_NUMBERS:
        return _compact(name, count, dim, f"{size}, more than {most}")
    if name == "auto":
        return IndexSetting(name, "Flat", why=f"{size}: up to {most} exact search is best")
    if name == "flat":
        return IndexSetting(name, "Flat", why="exact search was asked for")
    if name == "compact":
        return _compact(name, count, dim, "it was asked for")
    raise ValueError(f"There is no setting {name!r} of the vector index; choose {', '.join(NAMES)}.")


def _compact(name: str, count: int, dim: int, why: str) -> IndexSetting:
    """Return a setting with PCA rotation, inverted lists, product quantization to 64 bytes, and float16 rescoring."""
    lists = _power_of_two(4 * sqrt(count), at_most=count / PER_LIST)
    rotated = min(_DIMS, dim - dim % 2) or 1
    graph = "_HNSW32" if lists >= _GRAPH_LISTS else ""
    factory = f"IVF{lists}{graph},PQ{max(1, rotated // 2)}x4fsr"  # 2 numbers per code of 4 bits: 256 take 64 bytes
    why += f"; {lists:,} lists: a power of two near 4 * sqrt({count:,}), with {PER_LIST} vectors or more for each"
    return IndexSetting(name, factory, lists, rotated, None, _RESCORED, why)


def _power_of_two(wanted: float, *, at_most: float) -> int:
    """Return the power of two nearest to ``wanted`` on a logarithmic scale, at least 1 and at most ``at_most``."""
    return min(1 << round(log2(max(1, wanted))), 1 << int(log2(max(1, at_most))))
