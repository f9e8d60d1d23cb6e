"""Question in, passages out: load, chunk, embed, store, search, rerank. Knows nothing of language models.

Names are imported when they are first used, so that ``import antiphon.retrieval`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.retrieval.ann import FaissIndex
    from antiphon.retrieval.chunk import chunk_document
    from antiphon.retrieval.collection import Collection, EngineUnavailable, PassageIndex, Where
    from antiphon.retrieval.description import Description
    from antiphon.retrieval.document import Document, Heading
    from antiphon.retrieval.embed import Embedder, HashEmbedder, TokenEmbedder, TokenVectors, resolve
    from antiphon.retrieval.fuse import Fusion, convex, reciprocal_rank
    from antiphon.retrieval.generation import IndexCorrupt, IndexMismatch, IndexNotFound
    from antiphon.retrieval.index import IndexReport, build_index, index_passages, update_index
    from antiphon.retrieval.load import Loaded, Progress, Skipped, load_documents, read_document
    from antiphon.retrieval.local_index import LocalIndex
    from antiphon.retrieval.m3 import M3Embedder, lexical_score
    from antiphon.retrieval.minilm import MiniLMEmbedder
    from antiphon.retrieval.passage import Passage
    from antiphon.retrieval.rerank import CrossEncoderReranker, MaxSim, Reranker, resolve_reranker
    from antiphon.retrieval.retriever import Retriever
    from antiphon.retrieval.sentence_transformer import SentenceTransformerEmbedder
    from antiphon.retrieval.settings import Setting, choose
    from antiphon.retrieval.shards import Shards, merge_indexes
    from antiphon.retrieval.store import Store, read_store
    from antiphon.retrieval.vector_files import vector_index
    from antiphon.retrieval.vectors import FlatIndex, Hits, VectorIndex

_HOMES = {
    "ann": ("FaissIndex",),
    "chunk": ("chunk_document",),
    "collection": ("Collection", "EngineUnavailable", "PassageIndex", "Where"),
    "description": ("Description",),
    "document": ("Document", "Heading"),
    "embed": ("Embedder", "HashEmbedder", "TokenEmbedder", "TokenVectors", "resolve"),
    "fuse": ("Fusion", "convex", "reciprocal_rank"),
    "generation": ("IndexCorrupt", "IndexMismatch", "IndexNotFound"),
    "index": ("IndexReport", "build_index", "index_passages", "update_index"),
    "load": ("Loaded", "Progress", "Skipped", "load_documents", "read_document"),
    "local_index": ("LocalIndex",),
    "m3": ("M3Embedder", "lexical_score"),
    "minilm": ("MiniLMEmbedder",),
    "passage": ("Passage",),
    "rerank": ("CrossEncoderReranker", "MaxSim", "Reranker", "resolve_reranker"),
    "retriever": ("Retriever",),
    "sentence_transformer": ("SentenceTransformerEmbedder",),
    "settings": ("Setting", "choose"),
    "shards": ("Shards", "merge_indexes"),
    "store": ("Store", "read_store"),
    "vector_files": ("vector_index",),
    "vectors": ("FlatIndex", "Hits", "VectorIndex"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Collection",
    "CrossEncoderReranker",
    "Description",
    "Document",
    "Embedder",
    "EngineUnavailable",
    "FaissIndex",
    "FlatIndex",
    "Fusion",
    "HashEmbedder",
    "Heading",
    "Hits",
    "IndexCorrupt",
    "IndexMismatch",
    "IndexNotFound",
    "IndexReport",
    "Loaded",
    "LocalIndex",
    "M3Embedder",
    "MaxSim",
    "MiniLMEmbedder",
    "Passage",
    "PassageIndex",
    "Progress",
    "Reranker",
    "Retriever",
    "SentenceTransformerEmbedder",
    "Setting",
    "Shards",
    "Skipped",
    "Store",
    "TokenEmbedder",
    "TokenVectors",
    "VectorIndex",
    "Where",
    "build_index",
    "choose",
    "chunk_document",
    "convex",
    "index_passages",
    "lexical_score",
    "load_documents",
    "merge_indexes",
    "read_document",
    "read_store",
    "reciprocal_rank",
    "resolve",
    "resolve_reranker",
    "update_index",
    "vector_index",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
