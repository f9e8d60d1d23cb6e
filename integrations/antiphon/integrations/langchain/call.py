"""One call of a language model: what is asked, and what its completion becomes in LangChain's words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.block_translators import register_translator
from langchain_core.messages.content import Citation, ContentBlock
from langchain_core.messages.tool import tool_call_chunk

from antiphon.accel import Completion, LanguageModel, Stream
from antiphon.accel.messages import Prompt
from antiphon.integrations.langchain.tool_calls import Said, read
from antiphon.integrations.reading import Timed
from antiphon.pipelines import cite, passage_references
from antiphon.retrieval import Passage

PROVIDER = "antiphon"
CITATIONS = "citations"
"""The key of an answer's ``additional_kwargs`` under which its citations stand."""


@dataclass(frozen=True, slots=True)
class Call:
    """A prompt, the passages that the answer may quote, and how to generate it.

    ``opening`` is how the answer begins because the prompt already says so; ``tools`` are the names of those offered.
    """

    prompt: Prompt
    passages: tuple[Passage, ...]
    parameters: Mapping[str, Any]
    timeout: float | None = None
    tools: frozenset[str] = frozenset()
    opening: str = ""

    def begin(self, language_model: LanguageModel) -> Stream | Timed:
        """The stream of the answer; nothing is generated before its first piece is asked for."""
        references = passage_references(self.passages)
        stream = language_model.stream(self.prompt, references=references, **self.parameters)
        return stream if self.timeout is None else Timed(stream, self.timeout)

    def said(self, completion: Completion) -> Said:
        """What the model said, told from the tools that it called."""
        text = self.opening + completion.text
        return read(text, self.tools) if self.tools else Said(text)

    def message(self, completion: Completion, model: str) -> AIMessage:
        """The whole answer."""
        said = self.said(completion)
        return AIMessage(
            content=said.content,
            tool_calls=list(said.calls),
            invalid_tool_calls=list(said.broken),
            **self._facts(said.content, completion, model),
        )

    def last_chunk(self, completion: Completion, model: str, shown: str) -> AIMessageChunk:
        """The end of a streamed answer, after what was ``shown``: all that is known only now, once."""
        said = self.said(completion)
        made = [
            tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"], ensure_ascii=False), id=call["id"], index=index
            )
            for index, call in enumerate(said.calls)
        ]
        broken = [tool_call_chunk(name=call["name"], args=call["args"], id=call["id"]) for call in said.broken]
        return AIMessageChunk(
            content=said.content[len(shown) :],
            tool_call_chunks=made + broken,
            chunk_position="last",
            **self._facts(said.content, completion, model),
        )

    def citations(self, text: str) -> list[Citation]:
        """Which spans of the answer stand verbatim in a passage, as LangChain annotates text."""
        return [
            Citation(
                type="citation",
                title=found.source,
                start_index=found.start,
                end_index=found.end,
                cited_text=found.text,
                extras={
                    "document_id": self.passages[found.passage - 1].id,
                    "passage": found.passage,
                    "source_start": found.source_start,
                    "source_end": found.source_end,
                },
            )
            for found in cite(text, self.passages)
        ]

    def _facts(self, text: str, completion: Completion, model: str) -> dict[str, Any]:
        citations = self.citations(text)
        return {
            "additional_kwargs": {CITATIONS: citations} if citations else {},
            "usage_metadata": usage(completion),
            "response_metadata": {**metadata(completion, model), "model_provider": PROVIDER},
        }


def usage(completion: Completion) -> UsageMetadata:
    """The tokens read and written."""
    used = completion.usage
    return UsageMetadata(
        input_tokens=used.prompt_tokens, output_tokens=used.completion_tokens, total_tokens=used.total_tokens
    )


def metadata(completion: Completion, model: str) -> dict[str, Any]:
    """Which model it was, why it ended, and what its forwards came to."""
    return {"model_name": model, "finish_reason": completion.finish_reason, "steps": completion.steps.as_dict()}


def content_blocks(message: AIMessage) -> list[ContentBlock]:
    """The answer as standard content: citations annotate its text."""
    facts = {key: value for key, value in message.response_metadata.items() if key != "model_provider"}
    blocks: list[Any] = [*message.model_copy(update={"response_metadata": facts}).content_blocks]
    if citations := message.additional_kwargs.get(CITATIONS):
        if not any(block["type"] == "text" for block in blocks):
            blocks.insert(0, {"type": "text", "text": ""})  # the last chunk of a stream may have no text of its own
        text = next(block for block in blocks if block["type"] == "text")
        text["annotations"] = list(citations)
    return blocks


register_translator(PROVIDER, content_blocks, content_blocks)
