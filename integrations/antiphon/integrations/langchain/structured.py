"""Structured output: JSON text whose decoding is constrained to a schema."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.function_calling import convert_to_json_schema, convert_to_openai_tool
from langchain_core.utils.pydantic import is_basemodel_subclass

from antiphon.integrations.generation_fields import DESCRIBE_SCHEMA


def with_json_output(
    model: BaseChatModel, schema: dict[str, Any] | type, *, include_raw: bool = False, describe_schema: bool = False
) -> Runnable[LanguageModelInput, Any]:
    """Return a Runnable that calls the model and parses its answer as JSON.

    Args:
        schema: a pydantic class, whose objects are returned; for other schemas a dict is returned.
        include_raw: return "raw", "parsed" and "parsing_error" instead; then parsing raises no
            error.
        describe_schema: append the schema to the last message.
    """
    parser = _parser(schema)
    form = {"kwargs": {"method": "json_schema" if describe_schema else "json_mode"}, "schema": schema}
    asked: Runnable[LanguageModelInput, Any] = model.bind(
        json_schema=json_schema_of(schema), describe_schema=describe_schema, ls_structured_output_format=form
    )
    if not include_raw:
        return asked | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asked) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def format_arguments(response_format: Any) -> dict[str, Any]:
    """Convert OpenAI's ``response_format`` to arguments of a call.

    Raises:
        ValueError: the format is unknown.
    """
    match response_format:
        case None | {"type": "text"}:
            return {}
        case {"type": "json_object"}:
            return {"json_schema": {"type": "object"}}
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return {"json_schema": schema, DESCRIBE_SCHEMA: True}
    raise ValueError(f"response_format is {response_format!r}; give OpenAI's text, json_object or json_schema.")


def json_schema_of(schema: dict[str, Any] | type) -> dict[str, Any]:
    """Return the JSON schema. Pydantic converts its own classes, because LangChain cuts recursive references."""
    if isinstance(schema, type) and is_basemodel_subclass(schema) and hasattr(schema, "model_json_schema"):
        return dict(schema.model_json_schema())
    return convert_to_json_schema(schema)


def openai_tool(tool: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's format. For a pydantic class, pydantic makes the JSON schema of the parameters."""
    converted = convert_to_openai_tool(tool)
    if isinstance(tool, type) and is_basemodel_subclass(tool):
        converted["function"]["parameters"] = json_schema_of(tool)
    return converted


def _parser(schema: dict[str, Any] | type) -> Runnable[Any, Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()
