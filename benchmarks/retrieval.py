"""Retrieval quality: how well each question finds its own recorded passages among all passages.

python -m benchmarks.retrieval FILE
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.pipelines.benchmark.samples import RecordedSample, load_samples
from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.options import AsJson, Limit, Task
from antiphon.pipelines.rendering.tables import result_table
from antiphon.retrieval.fusion import Item, weighted_sum
from benchmarks.program import program

if TYPE_CHECKING:
    from antiphon.retrieval import Embedder, Passage, Retriever

DEPTH = 10
"""Number of passages retrieved for each question."""

RETRIEVAL = {name: name for name in ("method", "recall@5", "mrr", "ndcg@10")}

Search = Callable[[str], "list[Passage]"]


@dataclass(frozen=True, slots=True)
class RetrievalFigures:
    """Mean figures of one search method over all questions.

    Attributes:
        method: Name of the method.
        recall: Recall@5: share of a question's passages (at most 5) among the first 5.
        mrr: Reciprocal rank of the first relevant passage.
        ndcg: nDCG@10 with binary relevance.
    """

    method: str
    recall: float
    mrr: float
    ndcg: float

    def as_dict(self) -> dict[str, Any]:
        """Return all figures, rounded."""
        figures = {"recall@5": self.recall, "mrr": self.mrr, "ndcg@10": self.ndcg}
        return {"method": self.method} | {name: round(figure, 4) for name, figure in figures.items()}


def measure_retrieval(samples: Sequence[RecordedSample], embedder: Embedder) -> list[RetrievalFigures]:
    """Search the passages of all samples for each question by vectors, by words, by both, and reranked.

    Args:
        samples: Recorded samples; their references are the passages.
        embedder: Embeds passages and questions.
    """
    from antiphon.retrieval import Retriever, index_passages

    owners = _owners(samples)
    with TemporaryDirectory() as folder:
        index_passages(list(owners), Path(folder) / "index", embedder)
        retriever = Retriever.open(Path(folder) / "index", embedder=embedder)
        relevant = [{passage.id for passage, own in owners.items() if number in own} for number in range(len(samples))]
        queries = [sample.query for sample in samples]
        return [_figures(name, search, queries, relevant) for name, search in _methods(retriever).items()]


def _owners(samples: Sequence[RecordedSample]) -> dict[Passage, set[int]]:
    """Map every distinct passage to the numbers of the questions that it belongs to."""
    from antiphon.retrieval import Passage

    owners: dict[Passage, set[int]] = {}
    for number, sample in enumerate(samples):
        for text in sample.references:
            owners.setdefault(Passage.at("recorded", 0, text), set()).add(number)
    return owners


def _methods(retriever: Retriever) -> Mapping[str, Search]:
    from antiphon.retrieval import Retriever

    index, embedder = retriever.index, retriever.embedder
    methods: dict[str, Search] = {
        "vectors": _search(Retriever(index, embedder, fusion=None)),
        "words (BM25)": lambda question: index.keyword_search(question, DEPTH),
        "both, by ranks": _search(Retriever(index, embedder, fusion=reciprocal_rank_fusion)),
        "both": _search(Retriever(index, embedder)),
    }
    if retriever.reranker is not None:
        methods[f"both, then {retriever.reranker.name}"] = _search(retriever)
    return methods


def reciprocal_rank_fusion(dense: Sequence[Item], lexical: Sequence[Item]) -> list[Item]:
    """Fuse by the sum of 1 / (10 + rank) over both rankings (Cormack, Clarke and Büttcher 2009), without scores."""
    rankings = ((each, [1 / (10 + rank) for rank in range(1, len(each) + 1)], 1.0) for each in (dense, lexical))
    return weighted_sum(*rankings)


def _search(retriever: Retriever) -> Search:
    return lambda question: retriever.search(question, DEPTH)


def _figures(method: str, search: Search, queries: Sequence[str], relevant: Sequence[set[str]]) -> RetrievalFigures:
    scores = [
        _score([passage.id in own for passage in search(query)], len(own))
        for query, own in zip(queries, relevant, strict=True)
    ]
    recall, mrr, ndcg = (sum(column) / len(scores) for column in zip(*scores, strict=True))
    return RetrievalFigures(method, recall, mrr, ndcg)


def _score(hits: Sequence[bool], relevant: int) -> tuple[float, float, float]:
    """Return recall@5, reciprocal rank and nDCG@10 of one ranking; ``hits`` marks its relevant places."""
    recall = sum(hits[:5]) / min(5, relevant)
    first = next((1 / place for place, hit in enumerate(hits, 1) if hit), 0.0)
    gain = sum(1 / log2(1 + place) for place, hit in enumerate(hits[:DEPTH], 1) if hit)
    ideal = sum(1 / log2(1 + place) for place in range(1, min(DEPTH, relevant) + 1))
    return recall, first, gain / ideal


def retrieval(
    file: Annotated[Path, typer.Argument(help="Recorded answers as JSONL: their queries and references are used.")],
    embedder: Annotated[str, typer.Option(help="minilm, bge-m3, a folder or a hub name.")] = "minilm",
    task: Task = None,
    limit: Limit = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps, ...")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well each question finds its own passages among those of all questions."""
    from antiphon.retrieval import load_embedder

    console.quiet_libraries()
    samples = load_samples(file, task=task, limit=limit)
    figures = [each.as_dict() for each in measure_retrieval(samples, load_embedder(embedder, device))]
    if as_json:
        typer.echo(json.dumps({"embedder": embedder, "questions": len(samples), "methods": figures}))
        return
    console.out.print(result_table(f"{len(samples)} questions, {embedder}", RETRIEVAL, figures))


app = program(retrieval)

if __name__ == "__main__":
    app()
