"""A model with its own prompt format gets its template in both frameworks, and a warning for any other prompt."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from llama_index.core import Settings, get_response_synthesizer
from llama_index.core.llms import ChatMessage
from llama_index.core.query_engine import RetrieverQueryEngine

from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from tests.integrations.scripted_model import ScriptedModel
from tests.integrations.tenant_contracts import ContractNodes, Contracts, question, quoting_answer, tenant_document

WARNING = "needs the prompt format 'reader'"


@pytest.fixture
def reader() -> Any:
    model = ScriptedModel(answer=quoting_answer)
    model.model.config.prompt_format = "reader"
    Settings.tokenizer = model.tokenizer.encode
    yield model
    Settings.tokenizer = None  # type: ignore[assignment]


def test_another_prompt_format_warns_once(reader: ScriptedModel) -> None:
    for ask in (
        ChatAntiphon(language_model=reader).invoke,
        lambda text: AntiphonLLM(language_model=reader).chat([ChatMessage(text)]),
    ):
        with pytest.warns(UserWarning, match=WARNING):
            ask("Which bees?")
    chat = ChatAntiphon(language_model=reader)
    with pytest.warns(UserWarning, match=WARNING):
        chat.invoke("Which bees?")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chat.invoke("Which bees?")
        ChatAntiphon(language_model=ScriptedModel(answer="Bees.")).invoke("Which bees?")


def test_the_models_own_template_causes_no_warning(reader: ScriptedModel) -> None:
    llm = AntiphonLLM(language_model=reader)
    synthesizer = get_response_synthesizer(llm=llm, text_qa_template=llm.prompt_template())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response = RetrieverQueryEngine(ContractNodes(), synthesizer).query(question(0))
        ChatAntiphon(language_model=reader).with_retriever(Contracts()).invoke(question(0))
    assert tenant_document(0)[0] in str(response)
    prompt = reader.asked[0][0]
    assert "You answer with sentences quoted from the passages, each with the number of its passage." in prompt
    assert f"Question: {question(0)}" in prompt
    assert "Passages:" in prompt
