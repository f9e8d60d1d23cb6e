"""Structured output always parses in both frameworks, even if the chat template does not support tools."""

from enum import Enum
from functools import cache
from itertools import product
from typing import Any

import pytest
from langchain_core.tools import tool
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from pydantic import BaseModel

from antiphon.accel import LanguageModel
from antiphon.integrations.langchain import ChatAntiphon
from antiphon.integrations.llama_index import AntiphonLLM
from tests.integrations.scripted_model import HERMES
from tests.table_part import part
from tests.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

LLAMA = HERMES.replace("<tool_call>\n", "").replace("\n</tool_call>", "").replace('"arguments"', '"parameters"')
MISTRAL = HERMES.replace("<tool_call>\n", "[TOOL_CALLS] [").replace("\n</tool_call>", "]")
TEMPLATES = {"without tools": None, "Hermes": HERMES, "Llama": LLAMA, "Mistral": MISTRAL}


class Kind(Enum):
    """The kinds of bees."""

    WORKER = "worker"
    QUEEN = "queen"


class Bee(BaseModel):
    """A bee."""

    name: str
    age: int


class Hive(BaseModel):
    """A schema with a nested object and an enum."""

    kind: Kind
    queen: Bee


class Hives(BaseModel):
    """A list of objects."""

    hives: list[Hive]


CLASSES: list[Any] = [Bee, Hive, Hives]

EACH_TEMPLATE = part(TEMPLATES, ("without tools", "Hermes"))


@tool
def count(number: int) -> str:
    """Count to a number."""
    return str(number)


@tool
def describe(hive: Hive) -> str:
    """Describe a hive."""
    return str(hive)


@cache
def model(template: str, seed: int = 0) -> LanguageModel:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATES[template] or tokenizer.chat_template
    return LanguageModel(tiny_model(seed=seed, max_position_embeddings=8192), tokenizer, name="tiny", recycling=False)


def chat(template: str, weights: int = 0, **parameters: Any) -> ChatAntiphon:
    return ChatAntiphon(language_model=model(template, weights), max_tokens=100, **parameters)


def llm(template: str, weights: int = 0, **parameters: Any) -> AntiphonLLM:
    return AntiphonLLM(language_model=model(template, weights), max_tokens=100, **parameters)


METHODS = [
    *product(TEMPLATES, ["function_calling"]),
    *product(["without tools", "Hermes"], ["json_schema", "json_mode"]),  # these do not use the template's tools
]


@pytest.mark.parametrize(
    ("template", "method"), part(METHODS, [("Hermes", "function_calling"), ("without tools", "json_schema")])
)
def test_structured_output_in_langchain_always_parses(template: str, method: str) -> None:
    for number, wanted in enumerate(CLASSES):
        asked = chat(template, number % 2, temperature=number % 2, seed=number)
        chain = asked.with_structured_output(wanted, method=method)
        assert isinstance(chain.invoke("Which bees?"), wanted)
    whole = chat(template).with_structured_output(Bee, method=method, include_raw=True).invoke("Which bees?")
    assert whole["parsing_error"] is None
    pieces = list(chat(template).with_structured_output(Bee, method=method).stream("Which bees?"))
    assert pieces[-1] == whole["parsed"]


@pytest.mark.parametrize("choice", ["any", "describe"])
@pytest.mark.parametrize("template", EACH_TEMPLATE)
def test_a_forced_tool_choice_always_calls_one_of_the_tools(template: str, choice: str) -> None:
    for seed in range(2):
        bound = chat(template, seed % 2, temperature=1.0, seed=seed).bind_tools([count, describe], tool_choice=choice)
        answer: Any = bound.invoke("Which bees?")
        assert (len(answer.tool_calls), len(answer.invalid_tool_calls), answer.content) == (1, 0, "")
        call = answer.tool_calls[0]
        assert call["name"] in {"count", "describe"} if choice == "any" else call["name"] == choice
        (count if call["name"] == "count" else describe).invoke(call["args"])


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore:The `json` method is deprecated")  # called by LlamaIndex itself
@pytest.mark.parametrize("template", EACH_TEMPLATE)
async def test_structured_output_in_llama_index_always_parses(template: str) -> None:
    prompt = PromptTemplate("Which bees {what}?")
    for number, wanted in enumerate(CLASSES):
        asked = llm(template, number % 2, temperature=number % 2, seed=number)
        structured = asked.as_structured_llm(wanted)
        assert isinstance((await structured.achat([ChatMessage("Which bees?")])).raw, wanted)
        assert isinstance(list(structured.stream_chat([ChatMessage("Which bees?")]))[-1].raw, wanted)
        found: Any = asked.structured_predict(wanted, prompt, what="dance")
        parts = [part async for part in await asked.astream_structured_predict(wanted, prompt, what="dance")]
        assert parts[-1] == found


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_required_tool_in_llama_index_is_always_called(template: str) -> None:
    def age(number: int) -> int:
        return number

    asked = llm(template, temperature=1.0, seed=5)
    response = asked.chat_with_tools([FunctionTool.from_defaults(age)], "How old?", tool_required=True)
    assert [call.tool_name for call in asked.get_tool_calls_from_response(response)] == ["age"]
