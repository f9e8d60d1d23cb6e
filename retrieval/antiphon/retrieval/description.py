"""What searches the vectors of an index, why, and how well: written down when it is built. Knows nothing of FAISS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from antiphon.retrieval.settings import EXACT_ROWS, FLAT_NUMBERS


@dataclass(frozen=True, slots=True)
class Description:
    """A vector index in words and figures.

    Recall is the share of the exact 10 or 100 nearest that are among the first 10 or 100 found, on ``sampled`` queries
    that had no part in choosing the probes; ``curve`` holds the recall at 100 by probes that they were chosen from.
    ``bytes_per_vector`` counts memory, ``disk_bytes_per_vector`` what is read from a file where it is needed.
    """

    setting: str
    factory: str
    why: str
    vectors: int
    dim: int
    bytes_per_vector: float
    disk_bytes_per_vector: float = 0.0
    rotated: int = 0
    lists: int | None = None
    probes: int | None = None
    probes_why: str = ""
    rescored: int = 0
    trained_on: int = 0
    recall_10: float = 1.0
    recall_100: float = 1.0
    sampled: int = 0
    curve: tuple[tuple[int, float], ...] = ()
    faiss: str = ""
    exact_rows: int = EXACT_ROWS
    in_memory: int = FLAT_NUMBERS

    def as_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Description:
        """What `as_dict` gave, read back from JSON; a field that an earlier version did not write has its default."""
        known = {field.name: facts[field.name] for field in fields(cls) if field.name in facts}
        return cls(**known | {"curve": tuple((int(probes), float(recall)) for probes, recall in facts["curve"])})

    def lines(self) -> list[str]:
        """Sentences for people."""
        exact = self.factory == "Flat"
        rows = [
            f"{self.vectors:,} vectors of {self.dim:,} numbers",
            f"setting {self.setting}: {'exact search' if exact else self.factory}, because {self.why}",
        ]
        if self.rotated:
            rows.append(f"rotated by principal axes (uncentred) to {self.rotated} dimensions first")
        if self.trained_on:
            rows.append(f"trained on {self.trained_on:,} vectors by FAISS {self.faiss}")
        if self.lists is not None:
            rows.append(f"{self.probes:,} of {self.lists:,} lists are looked into: {self.probes_why}")
        if self.rescored:
            rows.append(f"the best {self.rescored} * k are scored again by their own float16 vectors")
        rows.append(f"{self.bytes_per_vector:,.1f} bytes of memory a vector, {self.disk_bytes_per_vector:,.1f} on disk")
        return [*rows, self._recall()]

    def _recall(self) -> str:
        if not self.sampled:
            return "recall@10 1, recall@100 1: it is exact"
        return (
            f"recall@10 {self.recall_10:.3f}, recall@100 {self.recall_100:.3f} "
            f"against exact search, on {self.sampled} queries"
        )
