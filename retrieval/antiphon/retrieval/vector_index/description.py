"""The description saved with a vector index: its setting, the reason, and its measured recall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class IndexDescription:
    """The search parameters of a vector index, and its measured recall.

    Attributes:
        setting: The name of the setting; see `IndexSetting`.
        factory: FAISS's factory string; "Flat" is exact search.
        disk_bytes_per_vector: Bytes per vector in a file that is read on demand.
        rotated: The dimension after a rotation to the principal axes; 0: no rotation.
        lists: The number of inverted lists; 0: exact search.
        probes: The number of lists that a query searches.
        probes_why: The reason for the number of probes.
        rescored: ``rescored * k`` candidates are rescored with their stored vectors; 0: none.
        trained_on: The number of training vectors.
        recall_10: The share of the exact 10 nearest vectors that are among the first 10 results,
            measured with queries that were not used for tuning.
        recall_100: The recall at 100, measured with the same queries.
        sampled: The number of these queries; 0 if the search is exact.
    """

    setting: str
    factory: str
    why: str
    vectors: int
    dim: int
    bytes_per_vector: float
    disk_bytes_per_vector: float = 0.0
    rotated: int = 0
    lists: int = 0
    probes: int = 0
    probes_why: str = ""
    rescored: int = 0
    trained_on: int = 0
    recall_10: float = 1.0
    recall_100: float = 1.0
    sampled: int = 0
    faiss: str = ""

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> IndexDescription:
        """Return a saved description; fields that this version does not know are left out."""
        return cls(**{field.name: facts[field.name] for field in fields(cls) if field.name in facts})

    def lines(self) -> list[str]:
        """Return the description as lines of text."""
        exact = self.factory == "Flat"
        rows = [
            f"{self.vectors:,} vectors of {self.dim:,} numbers",
            f"setting {self.setting}: {'exact search' if exact else self.factory}, because {self.why}",
        ]
        if self.rotated:
            rows.append(f"rotated by principal axes (uncentred) to {self.rotated} dimensions first")
        if self.trained_on:
            rows.append(f"trained on {self.trained_on:,} vectors by FAISS {self.faiss}")
        if self.lists:
            rows.append(f"{self.probes:,} of {self.lists:,} lists are searched: {self.probes_why}")
        if self.rescored:
            rows.append(f"the best {self.rescored} * k are rescored with their own float16 vectors")
        rows.append(
            f"{self.bytes_per_vector:,.1f} bytes of memory per vector, {self.disk_bytes_per_vector:,.1f} on disk"
        )
        return [*rows, self._recall()]

    def _recall(self) -> str:
        if not self.sampled:
            return "recall@10 1, recall@100 1: it is exact"
        return (
            f"recall@10 {self.recall_10:.3f}, recall@100 {self.recall_100:.3f} "
            f"against exact search, on {self.sampled} queries"
        )
