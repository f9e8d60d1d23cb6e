"""The prompt that a model was made for, as a template of LlamaIndex that query engines and synthesizers take."""

from __future__ import annotations

from typing import Any

from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.prompts import ChatPromptTemplate

from antiphon.accel import TextModel
from antiphon.pipelines.prompt import Prompt, prompt_format
from antiphon.retrieval import Passage


def prompt_template(language_model: TextModel) -> ChatPromptTemplate:
    """A template of ``context_str`` and ``query_str``, for ``text_qa_template``: the context is one passage of it.

    Raises:
        ValueError: the model's configuration names a form that is not known.
    """
    form = prompt_format(language_model)

    def written(context_str: str = "", query_str: str = "", **_: Any) -> Prompt:
        return form(query_str, [Passage.at("", 0, context_str)])

    def asked(**given: Any) -> str:
        content = written(**given).content
        return content if isinstance(content, str) else str(content[-1]["content"])

    told = written().content
    before = [] if isinstance(told, str) else [ChatMessage(turn["content"], role=turn["role"]) for turn in told[:-1]]
    template = ChatPromptTemplate([*before, ChatMessage("{asked}")], function_mappings={"asked": asked})
    template.template_vars = ["context_str", "query_str"]
    return template
