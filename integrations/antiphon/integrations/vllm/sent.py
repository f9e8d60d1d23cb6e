"""What a client sends along with a request, for whoever keeps a client of his own. Knows no server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antiphon.integrations.vllm.admission import PREDICTION, REFERENCES

TEXTS = ("text", "page_content")
"""Where a passage has its text, and where a document of LangChain has."""


def references_for(documents: Iterable[object], *, prediction: str | None = None) -> dict[str, Any]:
    """The ``extra_body`` of a request to a vLLM with the plug-in: what its answer may quote, and what it may be.

    Documents are texts, passages, or documents and nodes of LangChain and LlamaIndex. It goes as ``extra_body`` to
    openai-python and to LangChain's ChatOpenAI, and as ``additional_kwargs={"extra_body": ...}`` to LlamaIndex'
    OpenAILike. A ``prediction`` is a text that the answer probably repeats from its beginning, such as code that is to
    be edited.

    Raises:
        TypeError: something is no document.
    """
    texts = list(dict.fromkeys(_text(index, each) for index, each in enumerate(_several(documents))))
    given: dict[str, Any] = {REFERENCES: texts} if texts else {}
    if prediction:
        given[PREDICTION] = prediction
    return {"vllm_xargs": given} if given else {}


def _several(documents: Iterable[object]) -> Iterable[object]:
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise TypeError(f"documents is of type {type(documents).__name__}; give a list of texts or documents.")
    return documents


def _text(index: int, document: object) -> str:
    if isinstance(document, str):
        return document
    inner = getattr(document, "node", document)  # LlamaIndex' node with a score
    for name in TEXTS:
        if isinstance(text := getattr(inner, name, None), str):
            return text
    raise TypeError(
        f"documents[{index}] is of type {type(document).__name__}; give texts, passages, documents or nodes."
    )
