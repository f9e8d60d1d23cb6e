"""`HiddenReferences` keeps its passages through copies and pickles, and shows no text of them in any other form."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from langchain_core.load import dumpd, dumps
from langchain_core.messages import HumanMessage, ToolMessage, get_buffer_string, messages_to_dict
from langsmith._internal._serde import dumps_json
from langsmith.utils import deepish_copy
from llama_index.core.llms import ChatMessage

from antiphon.integrations.references import HiddenReferences
from antiphon.retrieval import Passage

PASSAGE = Passage.at("hive.txt", 0, "The password of the hive is propolis")


@pytest.fixture
def hidden() -> HiddenReferences:
    return HiddenReferences([PASSAGE])


def test_copies_and_pickles_keep_the_passages(hidden: HiddenReferences) -> None:
    copies = (
        copy.copy(hidden),
        copy.deepcopy(hidden),
        hidden.model_copy(deep=True),
        pickle.loads(pickle.dumps(hidden)),
    )
    for copied in (hidden, *copies):
        assert copied.passages == (PASSAGE,)
        assert copied == hidden
        assert hash(copied) == hash(hidden)
    assert hidden != HiddenReferences([])


def test_the_object_prints_and_serializes_as_the_word_references(hidden: HiddenReferences) -> None:
    assert str(hidden) == repr(hidden) == f"{hidden}" == "references"
    assert str(hidden.model_dump()) == "references"
    assert json.loads(hidden.model_dump_json()) == "references"
    assert json.loads(json.dumps([hidden], default=str)) == ["references"]
    assert (dict(hidden), vars(hidden)) == ({}, {})


def test_messages_of_langchain_show_no_text_of_references(hidden: HiddenReferences) -> None:
    messages = [
        HumanMessage("Where?", additional_kwargs={"references": hidden}),
        ToolMessage("found", tool_call_id="1", artifact=hidden),
    ]
    for message in messages:
        forms: list[Any] = [
            message,
            repr(message),
            message.model_dump(),
            message.model_dump_json(),
            message.pretty_repr(),
            dumps(message),
            dumpd(message),
            dumps_json({"inputs": [message], "extra": hidden}),
            deepish_copy({"inputs": [message]}),
        ]
        assert all("propolis" not in str(form) for form in forms)
    assert "propolis" not in str(messages_to_dict(messages)) + get_buffer_string(messages)


def test_messages_of_llama_index_show_no_text_of_references(hidden: HiddenReferences) -> None:
    message = ChatMessage("Where?", additional_kwargs={"references": hidden})
    for form in (message, repr(message), message.model_dump(), message.model_dump_json()):
        assert "propolis" not in str(form)
