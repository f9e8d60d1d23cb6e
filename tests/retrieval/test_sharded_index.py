"""Shards that are searched together or merged give the same results as one index."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from antiphon.retrieval import (
    HashEmbedder,
    IndexMismatch,
    Passage,
    Retriever,
    ShardedIndex,
    index_passages,
    merge_indexes,
    read_index,
)
from antiphon.retrieval.vector_index.flat import Vectors
from tests.retrieval.test_index_changes import ALL, DIM, EMBEDDER, Given, passage, vector


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("parts")
    for number in range(3):
        index_passages(
            list(dict.fromkeys([*ALL[number::3], ALL[0]])),
            root / str(number),
            Given(DIM),
            setting=("flat", "compact")[number == 1],
        )
    return [root / str(number) for number in range(3)]


def test_shards_find_the_same_as_one_index(parts: list[Path], tmp_path: Path) -> None:
    index_passages(ALL, tmp_path, Given(DIM))
    whole = Retriever.open(tmp_path, embedder=EMBEDDER).index
    shards = ShardedIndex([Retriever.open(part, embedder=EMBEDDER).index for part in parts])
    for number in (0, 3, 77):
        for where in (None, {"lang": "de"}):
            found, expected = (
                shards.vector_search(vector(number), 9, where),
                whole.vector_search(vector(number), 9, where),
            )
            assert [hit.id for hit in found] == [hit.id for hit in expected]
            assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], abs=2e-3)
    assert [hit.id for hit in shards.keyword_search("77", 3)] == ["p77"]
    assert len({hit.id for hit in shards.keyword_search("passage version", 50)}) == 50
    with pytest.raises(ValueError, match="There is no part to search"):
        ShardedIndex([])


def test_merging_keeps_all_passages_and_vectors_and_embeds_nothing(parts: list[Path], tmp_path: Path) -> None:
    class Idle(HashEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            raise AssertionError("all vectors are there")

    newer = tmp_path / "newer"
    index_passages([passage(4, 2)], newer, Given(DIM))
    assert merge_indexes([*parts, newer], tmp_path / "out", embedder=Idle(DIM), setting="compact") == len(ALL)
    store = read_index(tmp_path / "out")
    assert {each.id for each in store.passages} == {each.id for each in ALL}
    assert store.description.setting == "compact"
    index = Retriever.open(tmp_path / "out", embedder=EMBEDDER).index
    assert index.vector_search(vector(4, 2), 1)[0].text == passage(4, 2).text
    assert index.vector_search(vector(100), 1)[0].id == "p100"


def test_parts_of_different_embedders_are_not_merged(parts: list[Path], tmp_path: Path) -> None:
    index_passages([Passage.at("a", 0, "other")], tmp_path / "other", HashEmbedder(128))
    with pytest.raises(IndexMismatch, match="hash:words:128, which is not hash:words:64"):
        merge_indexes([parts[0], tmp_path / "other"], tmp_path / "out", embedder=EMBEDDER)
    with pytest.raises(ValueError, match="There is no index to merge"):
        merge_indexes([], tmp_path / "out")


def test_duplicate_ids_are_refused_before_anything_is_embedded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 passages have the id p3; each needs one of its own"):
        index_passages([*ALL[:5], passage(3, 1)], tmp_path, EMBEDDER)
    assert not list(tmp_path.iterdir())
