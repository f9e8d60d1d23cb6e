"""The fusion by ranks that the benchmark compares with ours."""

from antiphon.retrieval import Passage
from benchmarks.retrieval import reciprocal_rank_fusion


def test_reciprocal_ranks_are_summed_independently_of_scores() -> None:
    dense = [Passage(name, name, "source", 0, 1, score) for name, score in (("a", 3.0), ("b", 2.0))]
    lexical = [Passage(name, name, "source", 0, 1, score) for name, score in (("b", 0.1), ("c", 0.05))]
    found = [(passage.id, passage.score) for passage in reciprocal_rank_fusion(dense, lexical)]
    assert found == [("b", 1 / 12 + 1 / 11), ("a", 1 / 11), ("c", 1 / 12)]
