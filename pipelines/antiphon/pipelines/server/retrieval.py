"""/v1/embeddings, /v1/rerank and /passages: what an index offers without a language model."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request

from antiphon.pipelines.server.chat import ERRORS
from antiphon.pipelines.server.documents import index_of
from antiphon.pipelines.server.errors import ApiError, refused_error
from antiphon.pipelines.server.figures import passage_object
from antiphon.pipelines.server.requests import EmbeddingRequest, RerankRequest, SourceText
from antiphon.pipelines.server.service import key_of, service_of
from antiphon.retrieval import Embedder, Passage, Reranker

MOST_TEXTS = 2048
"""How many texts are taken at once, as in OpenAI's API."""

TOKENS = (
    "input has token ids, of a tokenizer that is not this embedder's; give texts. LangChain's OpenAIEmbeddings does so "
    "with check_embedding_ctx_length=False."
)

router = APIRouter(responses=ERRORS)


@router.post("/v1/embeddings", tags=["OpenAI"])
async def embeddings(asked: EmbeddingRequest, request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
    """The vectors of texts."""
    embedder = service_of(request).embedder
    if embedder is None:
        raise ApiError(404, "This server has no embedder; start it with --index or --embedder.", param="model")
    given = [asked.input] if isinstance(asked.input, str) else asked.input
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) < len(given):
        raise refused_error("input", TOKENS)
    if not texts or not all(texts) or len(texts) > MOST_TEXTS:
        raise refused_error(
            "input", f"input has {len(texts)} texts; from 1 to {MOST_TEXTS} are taken, none of them empty."
        )
    if asked.dimensions not in (None, embedder.dim):
        raise refused_error(
            "dimensions", f"dimensions is {asked.dimensions}; vectors of {embedder.name} have {embedder.dim}."
        )
    return await asyncio.to_thread(_embedded, embedder, asked, texts)


def _embedded(embedder: Embedder, asked: EmbeddingRequest, texts: list[str]) -> dict[str, Any]:
    vectors = np.asarray(embedder.embed_documents(texts), dtype="<f4")
    tokens = sum(embedder.count_tokens(text) for text in texts)

    def told(vector: Any) -> Any:
        is_packed = asked.encoding_format == "base64"
        return base64.b64encode(vector.tobytes()).decode() if is_packed else vector.tolist()

    data = [{"object": "embedding", "index": place, "embedding": told(each)} for place, each in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": embedder.name, "usage": usage}


@router.post("/v1/rerank", tags=["Retrieval"])
async def rerank(asked: RerankRequest, request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
    """Texts in the order in which they answer a question, best first."""
    service = service_of(request)
    if service.reranker is None and service.embedder is None:
        raise ApiError(404, "This server has no reranker; start it with --index or --embedder.", param="model")
    if len(asked.documents) > MOST_TEXTS:
        raise refused_error("documents", f"{len(asked.documents)} documents were given; {MOST_TEXTS} are taken.")
    return await asyncio.to_thread(_reranked, service.reranker, service.embedder, asked)


def _reranked(reranker: Reranker | None, embedder: Embedder | None, asked: RerankRequest) -> dict[str, Any]:
    texts = [each.text if isinstance(each, SourceText) else each for each in asked.documents]
    passages = [Passage(text, str(place), "", 0, len(text)) for place, text in enumerate(texts)]
    if reranker is not None:
        found = [(int(each.id), float(each.score or 0.0)) for each in reranker.rerank(asked.query, passages)]
    elif embedder is not None:
        scores = embedder.embed_documents(texts) @ embedder.embed_queries([asked.query])[0]
        found = [(place, float(scores[place])) for place in np.argsort(-scores, kind="stable").tolist()]
    results = [
        {
            "index": place,
            "relevance_score": score,
            **({"document": {"text": texts[place]}} if asked.return_documents else {}),
        }
        for place, score in found[: asked.top_n]
    ]
    name = reranker.name if reranker is not None else embedder.name if embedder is not None else ""
    return {"object": "list", "model": name, "results": results}


@router.get("/passages/{identifier}", tags=["Retrieval"])
def passage_by_id(identifier: str, request: Request, _: Annotated[str, Depends(key_of)]) -> dict[str, Any]:
    """A passage of the index, by the id that a citation gives."""
    index = index_of(service_of(request))
    found = None if index is None else index.passage(identifier)
    if found is None:
        raise ApiError(404, "There is no such passage in the index; it may have been removed.")
    return passage_object(found)
