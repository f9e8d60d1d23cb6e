"""Validation and tokenization of references and predictions, and the body that a client sends."""

import copy
import random
from typing import Any

import pytest
from langchain_core.documents import Document
from llama_index.core.schema import NodeWithScore, TextNode

from antiphon.integrations.vllm import references_for
from antiphon.integrations.vllm.admission import (
    ADMITTED,
    MAX_REFERENCES,
    MAX_TOKENS,
    SLICE_CHARACTERS,
    AdmittedSources,
    Sources,
    admit,
    read_sources,
    slice_text,
)
from antiphon.retrieval import Passage

VOCAB_SIZE = 256


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
        ({"references": [255], "prediction": []}, Sources(((255,),))),
        ({"prediction": "a"}, Sources(prediction=(97,))),
        ({"prediction": [1, 2], "references": ["a"]}, Sources(((97,),), (1, 2))),
        ({"session_id": "x"}, None),
    ],
)
def test_valid_arguments_become_token_ids(given: dict[str, Any], sources: Sources | None) -> None:
    assert admit(given, tokenize, VOCAB_SIZE) == sources
    if sources is not None:
        assert read_sources({ADMITTED: AdmittedSources(sources, given)}) == sources


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"references": 0}, "references is 0; give a list of texts"),
        ({"references": {"a": 1}}, "of type dict"),
        ({"references": ["a", 1]}, "something else than texts"),
        ({"references": [1.5]}, "something else than texts"),
        ({"references": [True]}, "something else than texts"),
        ({"references": [[1], [2]]}, "something else than texts"),
        ({"references": [-2]}, "something else than texts"),
        ({"prediction": [-1]}, "prediction holds something else than token ids; give a text, or a flat list"),
        ({"prediction": 3}, "prediction is 3"),
        ({"references": ["a"] * (MAX_REFERENCES + 1)}, f"one request may bring {MAX_REFERENCES}"),
        ({"references": ["a" * 1000] * 66}, f"66000 tokens, and one request may bring {MAX_TOKENS}"),
        ({"references": [1] * (MAX_TOKENS + 1)}, f"65537 tokens, and one request may bring {MAX_TOKENS}"),
        ({"references": ["a" * 10_000_000]}, "10000000 characters"),
    ],
)
def test_invalid_arguments_are_rejected_with_what_is_needed(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        admit(given, tokenize, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["references", "prediction"])
@pytest.mark.parametrize(
    ("token", "shown"), [(256, "256"), (2**31, "2147483648"), (2**63, "9223372036854775808"), (10**400, "1329 bits")]
)
def test_a_token_id_outside_the_vocabulary_is_rejected_by_name(name: str, token: int, shown: str) -> None:
    with pytest.raises(
        ValueError, match=rf"{name} holds a token id outside the vocabulary: .*{shown}.*; .* size is 256"
    ):
        admit({name: [1, token, 2]}, tokenize, VOCAB_SIZE)


@pytest.mark.parametrize("name", ["references", "prediction"])
def test_a_token_id_outside_the_vocabulary_from_the_tokenizer_is_rejected(name: str) -> None:
    """Some tokenizers have more tokens than the model has embeddings."""
    with pytest.raises(
        ValueError, match=f"{name} holds a token id outside the vocabulary: 256; the model's vocabulary size is 256"
    ):
        admit({name: "a"}, lambda _: [1, 256], VOCAB_SIZE)


@pytest.mark.parametrize("given", [{"references": ["a", "b\ud800"]}, {"prediction": "b\udfff"}])
def test_a_text_with_a_lone_surrogate_is_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"holds a lone surrogate, '.ud.*' at character 1"):
        admit(given, tokenize, VOCAB_SIZE)


@pytest.mark.parametrize("forged", [1, "a", [1], {"references": [[10**9]], "prediction": []}, {}])
def test_the_reserved_key_is_rejected_if_a_client_sets_it(forged: Any) -> None:
    for others in ({}, {"references": ["a"]}):
        with pytest.raises(ValueError, match="'antiphon' is a reserved key; give 'references' and 'prediction'"):
            admit({**others, ADMITTED: forged}, tokenize, VOCAB_SIZE)


def test_arguments_that_were_admitted_are_admitted_again() -> None:
    """Offline use of vLLM passes the same sampling parameters for many prompts."""
    given: dict[str, Any] = {"references": ["a"]}
    again = {**given, ADMITTED: copy.deepcopy(AdmittedSources(Sources(((97,),)), given))}
    assert admit(again, tokenize, VOCAB_SIZE) == Sources(((97,),))
    assert again[ADMITTED].is_made_from(again)
    given["references"].append("b")
    assert not again[ADMITTED].is_made_from(again)


def test_a_text_over_the_limit_is_rejected_before_tokenization() -> None:
    def never(text: str) -> list[int]:
        raise AssertionError

    with pytest.raises(ValueError, match="characters"):
        admit({"references": ["a" * 10_000_000]}, never, VOCAB_SIZE)


def test_slices_make_up_the_text_and_end_before_spaces() -> None:
    chance = random.Random(0)
    text = " ".join("x" * chance.randrange(1, 40) for _ in range(5_000))
    slices = list(slice_text(text))
    assert "".join(slices) == text
    assert max(map(len, slices)) <= SLICE_CHARACTERS
    assert all(each.startswith(" ") for each in slices[1:])
    assert [len(each) for each in slice_text("y" * 20_000)] == [SLICE_CHARACTERS, SLICE_CHARACTERS, 3_616]
    assert not list(slice_text(""))


def test_documents_of_every_framework_become_references() -> None:
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
