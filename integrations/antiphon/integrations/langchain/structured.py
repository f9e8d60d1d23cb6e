"""Answers in a form, as JSON in plain text that is decoded under its schema."""

from __future__ import annotations

import json
from functools import partial
from operator import itemgetter
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable, RunnableLambda, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema
from langchain_core.utils.pydantic import is_basemodel_subclass


def as_json(
    model: BaseChatModel, schema: dict[str, Any] | type, *, include_raw: bool = False, told: bool = False
) -> Runnable[LanguageModelInput, Any]:
    """The model with its answer read as JSON: an object of the pydantic class ``schema``, for all others a dict.

    With ``told`` the prompt says which JSON is wanted. With ``include_raw`` a dict of "raw", "parsed" and
    "parsing_error", which never raises.
    """
    parser = _parser(schema)
    form = {"kwargs": {"method": "json_schema" if told else "json_mode"}, "schema": schema}
    wanted = convert_to_json_schema(schema)
    asked: Runnable[LanguageModelInput, Any] = model.bind(json_schema=wanted, ls_structured_output_format=form)
    if told:
        asked = RunnableLambda(partial(_told, wanted)) | asked
    if not include_raw:
        return asked | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asked) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _told(schema: dict[str, Any], given: LanguageModelInput) -> list[BaseMessage]:
    """The messages, whose last one says which JSON is wanted."""
    text = f"Answer in JSON that follows this schema:\n{json.dumps(schema, ensure_ascii=False)}"
    messages = as_messages(given)
    if messages and isinstance(messages[-1], HumanMessage) and isinstance(messages[-1].content, str):
        last = messages[-1].model_copy(update={"content": f"{messages[-1].content}\n\n{text}"})
        return [*messages[:-1], last]
    return [*messages, HumanMessage(text)]


def as_messages(given: LanguageModelInput) -> list[BaseMessage]:
    """Whatever a chat model takes, as messages."""
    if isinstance(given, PromptValue):
        return list(given.to_messages())
    return [HumanMessage(given)] if isinstance(given, str) else convert_to_messages(given)


def _parser(schema: dict[str, Any] | type) -> Runnable[Any, Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()
