"""A model's own prompt format as a LlamaIndex prompt template for query engines and synthesizers."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import ChatPromptTemplate

from antiphon.accel import TextModel
from antiphon.pipelines.prompt import Prompt, prompt_format
from antiphon.retrieval import Passage


def prompt_template(language_model: TextModel) -> ChatPromptTemplate:
    """Return a template with the variables ``context_str`` and ``query_str``; the whole context becomes one passage.

    Raises:
        ValueError: the model's configuration names an unknown prompt format.
    """
    form = prompt_format(language_model)

    def build(context_str: str = "", query_str: str = "", **_: Any) -> Prompt:
        return form(query_str, [Passage.at("", 0, context_str)])

    def user_message(**given: Any) -> str:
        content = build(**given).content
        return content if isinstance(content, str) else str(content[-1]["content"])

    content = build().content
    turns = () if isinstance(content, str) else content[:-1]
    before = [ChatMessage(turn["content"], role=turn["role"]) for turn in turns]
    messages = [*before, ChatMessage("{user_message}")]
    template = ChatPromptTemplate(messages, function_mappings={"user_message": user_message})
    template.template_vars = ["context_str", "query_str"]
    return template
