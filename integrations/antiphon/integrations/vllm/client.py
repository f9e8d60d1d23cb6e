"""The request body that carries references and a prediction to vLLM, for users of any OpenAI client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from antiphon.integrations.vllm.admission import PREDICTION, REFERENCES

TEXT_ATTRIBUTES = ("text", "page_content")
"""The attributes that may hold the text: of passages and LlamaIndex nodes, and of LangChain documents."""


def references_for(documents: Iterable[object], *, prediction: str | None = None) -> dict[str, Any]:
    """Return the ``extra_body`` of a request to a vLLM server with the plug-in.

    Pass it as ``extra_body`` to openai-python and to LangChain's ChatOpenAI, and as
    ``additional_kwargs={"extra_body": ...}`` to LlamaIndex' OpenAILike.

    Args:
        documents: Texts that the answer may quote: strings, passages, or documents and nodes of LangChain and
            LlamaIndex.
        prediction: A text that the answer probably repeats from its beginning, such as code to be edited.

    Raises:
        TypeError: ``documents`` is a single text, or contains an item that is not a document.
    """
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        raise TypeError(f"documents is of type {type(documents).__name__}; give a list of texts or documents.")
    texts = list(dict.fromkeys(_text(index, each) for index, each in enumerate(documents)))
    given: dict[str, Any] = {REFERENCES: texts} if texts else {}
    if prediction:
        given[PREDICTION] = prediction
    return {"vllm_xargs": given} if given else {}


def _text(index: int, document: object) -> str:
    if isinstance(document, str):
        return document
    inner = getattr(document, "node", document)  # LlamaIndex' NodeWithScore
    for name in TEXT_ATTRIBUTES:
        if isinstance(text := getattr(inner, name, None), str):
            return text
    raise TypeError(
        f"documents[{index}] is of type {type(document).__name__}; give texts, passages, documents or nodes."
    )
