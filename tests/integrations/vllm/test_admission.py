"""What a request may bring along: which forms are read, what is too much, and what a client sends."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, TextNode

from antiphon.integrations.vllm import references_for
from antiphon.integrations.vllm.admission import ADMITTED, MOST_REFERENCES, MOST_TOKENS, Sources, admitted, sources_of
from antiphon.retrieval import Passage


def tokenize(text: str) -> list[int]:
    return list(text.encode())


@pytest.mark.parametrize(
    ("given", "sources"),
    [
        ({"references": ["ab", "c"]}, Sources(((97, 98), (99,)))),
        ({"references": "ab"}, Sources(((97, 98),))),
        ({"references": [1, 2, -1, 3]}, Sources(((1, 2), (3,)))),
        ({"references": [4, 5]}, Sources(((4, 5),))),
        ({"references": []}, Sources()),
        ({"prediction": "a"}, Sources(prediction=(97,))),
        ({"prediction": [1, 2], "references": ["a"]}, Sources(((97,),), (1, 2))),
        ({"session_id": "x"}, None),
    ],
)
def test_forms_that_are_read(given: dict[str, Any], sources: Sources | None) -> None:
    assert admitted(given, tokenize) == sources
    if sources is not None:
        assert sources_of({ADMITTED: sources.as_argument()}) == sources


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"references": 0}, "references is 0; give a list of texts"),
        ({"references": {"a": 1}}, "of type dict"),
        ({"references": ["a", 1]}, "something else than texts"),
        ({"references": [1.5]}, "something else than texts"),
        ({"references": [-2]}, "something else than texts"),
        ({"prediction": [-1]}, "give a text, or a flat list of token ids"),
        ({"prediction": 3}, "prediction is 3"),
        ({"references": ["a"] * (MOST_REFERENCES + 1)}, f"one request may bring {MOST_REFERENCES}"),
        ({"references": ["a" * 1000] * 66}, f"66000 tokens, and one request may bring {MOST_TOKENS}"),
        ({"references": ["a" * 10_000_000]}, "10000000 characters"),
    ],
)
def test_what_is_refused_says_what_is_wanted(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        admitted(given, tokenize)


def test_a_text_that_is_far_too_long_is_refused_before_it_is_tokenized() -> None:
    def never(text: str) -> list[int]:
        raise AssertionError

    with pytest.raises(ValueError, match="characters"):
        admitted({"references": ["a" * 10_000_000]}, never)


def test_a_server_without_a_tokenizer_takes_ids() -> None:
    with pytest.raises(ValueError, match="give references and prediction as token ids"):
        admitted({"references": ["a"]}, None)
    assert admitted({"references": [1]}, None) == Sources(((1,),))


def test_documents_of_every_framework_become_what_a_client_sends() -> None:
    documents = [
        "text",
        Passage.at("bees.txt", 0, "passage"),
        Document("document"),
        TextNode(text="node"),
        NodeWithScore(node=TextNode(text="scored")),
        "text",
    ]
    sent = references_for(documents, prediction="so")
    assert sent == {"vllm_xargs": {"references": ["text", "passage", "document", "node", "scored"], "prediction": "so"}}
    assert references_for([]) == {}
    with pytest.raises(TypeError, match=r"documents\[1\] is of type int"):
        references_for(["a", 3])
    with pytest.raises(TypeError, match="give a list"):
        references_for("text")
