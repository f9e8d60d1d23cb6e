"""Make a `Rag` from the parts of a LlamaIndex engine, a retriever and an LLM."""

from __future__ import annotations

from typing import Any

from antiphon.accel import TextModel
from antiphon.integrations.llama_index.llm import AntiphonLLM
from antiphon.integrations.llama_index.retriever import AntiphonRetriever
from antiphon.pipelines import Rag, Searcher


def rag_of(
    retriever: Rag | AntiphonRetriever | Searcher, llm: AntiphonLLM | TextModel | str | None
) -> tuple[Rag, dict[str, Any]]:
    """Return a `Rag` with a retriever and an LLM, and the fields of both that are options of `Rag.ask`.

    Args:
        retriever: a retriever, or a `Rag`.
        llm: an LLM, a language model or a model's name. None: the language model of the `Rag`; if
            ``retriever`` is not a `Rag`, an `ExtractiveModel`.

    Raises:
        TypeError: ``retriever`` is another LlamaIndex retriever, or is a `Rag` although an LLM is
            given.
    """
    if isinstance(retriever, Rag):
        if llm is not None:
            raise TypeError("The Rag has a language model already; pass its retriever, or leave out llm.")
        return retriever, {}
    searcher, k, options = retriever, 5, dict[str, Any]()
    if isinstance(retriever, AntiphonRetriever):
        searcher, k = retriever.searcher, retriever.k
        options = {"where": retriever.where} if retriever.where else {}
    if not hasattr(searcher, "search"):
        raise TypeError(
            f"The retriever is a {type(retriever).__name__}; give an AntiphonRetriever, a Retriever or a Rag."
        )
    if isinstance(llm, AntiphonLLM):
        return Rag(searcher, llm.language_model, k=k), {**options, **llm.stream_options()}
    return Rag(searcher, llm, k=k), options
