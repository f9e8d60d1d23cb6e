"""LangChain and LlamaIndex behind one interface, for tests of what both do alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.integrations import langchain, llama_index
from antiphon.integrations.langchain import documents
from antiphon.integrations.llama_index import nodes
from antiphon.retrieval import Passage, Reranker


@dataclass(frozen=True)
class Retrieval:
    """The retrieval classes of a framework.

    Attributes:
        retriever: the class of its retriever.
        result: converts a passage to a document or a node with score.
        passage: converts a document or a node to a passage.
        search: searches with a retriever.
        embedding: the class of its embedding.
        rerank: reranks results and keeps at most this number of them.
    """

    retriever: Any
    result: Callable[[Passage], Any]
    passage: Callable[[object], Passage | None]
    search: Callable[[Any, str], list[Any]]
    embedding: Any
    rerank: Callable[[Reranker, int | None, Sequence[Any], str], list[Any]]


LANGCHAIN = Retrieval(
    langchain.AntiphonRetriever,
    documents.document_of,
    documents.passage_of,
    lambda retriever, question: retriever.invoke(question),
    langchain.AntiphonEmbeddings,
    lambda reranker, top_n, given, question: list(
        langchain.AntiphonReranker(reranker=reranker, top_n=top_n).compress_documents(given, question)
    ),
)
LLAMA_INDEX = Retrieval(
    llama_index.AntiphonRetriever,
    nodes.node_of,
    nodes.passage_of,
    lambda retriever, question: retriever.retrieve(question),
    llama_index.AntiphonEmbedding,
    lambda reranker, top_n, given, question: llama_index.AntiphonRerank(
        reranker=reranker, top_n=top_n
    ).postprocess_nodes(list(given), query_str=question),
)
FRAMEWORKS = {"langchain": LANGCHAIN, "llama-index": LLAMA_INDEX}
