"""Retrieval quality: how well each question finds its own recorded passages among all passages. Measures no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from antiphon.pipelines.benchmark.samples import RecordedSample

if TYPE_CHECKING:
    from antiphon.retrieval import Embedder, Passage, Retriever

DEPTH = 10
"""How far down a ranking is looked at."""

Search = Callable[[str], "list[Passage]"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One way to search: means over the questions.

    ``recall`` at 5 is the share of a question's own passages, of at most 5, that are among the first 5; ``mrr`` the
    reciprocal rank of the first one; ``ndcg`` at 10 weighs every place by 1 / log2(1 + place).
    """

    method: str
    recall: float
    mrr: float
    ndcg: float

    def as_dict(self) -> dict[str, Any]:
        """All figures, rounded."""
        figures = {"recall@5": self.recall, "mrr": self.mrr, "ndcg@10": self.ndcg}
        return {"method": self.method} | {name: round(figure, 4) for name, figure in figures.items()}


def measure_finding(samples: Sequence[RecordedSample], embedder: Embedder) -> list[Finding]:
    """Search the passages of all samples for each question: by vectors, by words, by both, and reranked."""
    from antiphon.retrieval import Retriever, index_passages

    owners = _owners(samples)
    with TemporaryDirectory() as folder:
        index_passages(list(owners), Path(folder) / "index", embedder)
        retriever = Retriever.open(Path(folder) / "index", embedder=embedder)
        relevant = [{passage.id for passage, who in owners.items() if number in who} for number in range(len(samples))]
        queries = [sample.query for sample in samples]
        return [_finding(name, search, queries, relevant) for name, search in _methods(retriever).items()]


def _owners(samples: Sequence[RecordedSample]) -> dict[Passage, set[int]]:
    """Every passage once, and the questions that it belongs to: two may share one."""
    from antiphon.retrieval import Passage

    owners: dict[Passage, set[int]] = {}
    for number, sample in enumerate(samples):
        for text in sample.references:
            owners.setdefault(Passage.at("recorded", 0, text), set()).add(number)
    return owners


def _methods(retriever: Retriever) -> Mapping[str, Search]:
    from antiphon.retrieval import Retriever, reciprocal_rank

    index, embedder = retriever.index, retriever.embedder
    methods: dict[str, Search] = {
        "vectors": _search(Retriever(index, embedder, fusion=None)),
        "words (BM25)": lambda question: index.matching(question, DEPTH),
        "both, by ranks": _search(Retriever(index, embedder, fusion=reciprocal_rank)),
        "both": _search(Retriever(index, embedder)),
    }
    if retriever.reranker is not None:
        methods[f"both, then {retriever.reranker.name}"] = _search(retriever)
    return methods


def _search(retriever: Retriever) -> Search:
    return lambda question: retriever.search(question, DEPTH)


def _finding(method: str, search: Search, queries: Sequence[str], relevant: Sequence[set[str]]) -> Finding:
    scores = [
        _score([passage.id in own for passage in search(query)], len(own))
        for query, own in zip(queries, relevant, strict=True)
    ]
    recall, mrr, ndcg = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    return Finding(method, recall, mrr, ndcg)


def _score(hits: Sequence[bool], relevant: int) -> tuple[float, float, float]:
    """Recall at 5, reciprocal rank and nDCG at 10 of one ranking; ``hits`` says of each place whether it is right."""
    recall = sum(hits[:5]) / min(5, relevant)
    first = next((1 / place for place, hit in enumerate(hits, 1) if hit), 0.0)
    gain = sum(1 / log2(1 + place) for place, hit in enumerate(hits[:DEPTH], 1) if hit)
    ideal = sum(1 / log2(1 + place) for place in range(1, min(DEPTH, relevant) + 1))
    return recall, first, gain / ideal
