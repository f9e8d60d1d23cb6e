"""Answers in a form, as JSON in plain text: for models whose chat template writes no tools."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser
from langchain_core.runnables import Runnable, RunnableMap, RunnablePassthrough
from langchain_core.utils.pydantic import is_basemodel_subclass


def json_mode(
    model: BaseChatModel, schema: dict[str, Any] | type, *, include_raw: bool = False
) -> Runnable[LanguageModelInput, Any]:
    """The model with its answer read as JSON: an object of the pydantic class ``schema``, for all others a dict.

    With ``include_raw`` a dict of "raw", "parsed" and "parsing_error", which never raises.
    """
    parser = _parser(schema)
    form = {"kwargs": {"method": "json_mode"}, "schema": schema}
    asked: Runnable[LanguageModelInput, Any] = model.bind(ls_structured_output_format=form)
    if not include_raw:
        return asked | parser
    parsed = RunnablePassthrough.assign(parsed=itemgetter("raw") | parser, parsing_error=lambda _: None)
    failed = RunnablePassthrough.assign(parsed=lambda _: None)
    return RunnableMap(raw=asked) | parsed.with_fallbacks([failed], exception_key="parsing_error")


def _parser(schema: dict[str, Any] | type) -> Runnable[Any, Any]:
    if isinstance(schema, type) and is_basemodel_subclass(schema):
        return PydanticOutputParser(pydantic_object=schema)
    return JsonOutputParser()
