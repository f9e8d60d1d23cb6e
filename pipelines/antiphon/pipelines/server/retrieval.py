"""The endpoints /v1/embeddings, /v1/rerank and /passages, which need no language model."""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request

from antiphon.pipelines.server.access_control import Access
from antiphon.pipelines.server.errors import CONTEXT_LENGTH_EXCEEDED, ERRORS, ApiError, unsupported_parameter
from antiphon.pipelines.server.request_schemas import EmbeddingRequest, Reference, RerankRequest
from antiphon.pipelines.server.response_fields import passage_object
from antiphon.pipelines.server.service import access_of, service_of
from antiphon.retrieval import Embedder, Passage, Reranker

MAX_TEXTS = 2048
"""Maximum number of texts in a request, as in OpenAI's API."""

NO_PASSAGE = "The index has no passage with this id; its document may have been removed."
TOKEN_IDS = (
    "input has token ids, but this embedder has another tokenizer; send texts. With LangChain's OpenAIEmbeddings set "
    "check_embedding_ctx_length=False."
)

router = APIRouter(responses=ERRORS)


@router.post("/v1/embeddings", tags=["OpenAI"])
async def embeddings(
    body: EmbeddingRequest, request: Request, _: Annotated[Access, Depends(access_of)]
) -> dict[str, Any]:
    """Embed texts."""
    embedder = service_of(request).embedder
    if embedder is None:
        raise ApiError(404, "This server has no embedder; start it with --index or --embedder.", param="model")
    given = [body.input] if isinstance(body.input, str) else body.input
    texts = [each for each in given if isinstance(each, str)]
    if len(texts) < len(given):
        raise unsupported_parameter("input", TOKEN_IDS)
    if not texts or not all(texts) or len(texts) > MAX_TEXTS:
        message = f"input has {len(texts)} texts; it needs 1 to {MAX_TEXTS}, none of them empty."
        raise unsupported_parameter("input", message)
    if body.dimensions not in (None, embedder.dim):
        message = f"dimensions is {body.dimensions}; {embedder.name} has {embedder.dim}."
        raise unsupported_parameter("dimensions", message)
    if body.truncate_prompt_tokens not in (None, -1, embedder.max_tokens):
        message = (
            f"truncate_prompt_tokens is {body.truncate_prompt_tokens}; only -1 is supported, which cuts off texts "
            f"after the {embedder.max_tokens} tokens that {embedder.name} reads."
        )
        raise unsupported_parameter("truncate_prompt_tokens", message)
    return await asyncio.to_thread(_embed, embedder, body, texts)


def _embed(embedder: Embedder, body: EmbeddingRequest, texts: list[str]) -> dict[str, Any]:
    counts, limit = [embedder.count_tokens(text) for text in texts], embedder.max_tokens
    longest = max(range(len(counts)), key=counts.__getitem__)
    if counts[longest] > limit and body.truncate_prompt_tokens is None:
        raise ApiError(
            400,
            f"input.{longest} has {counts[longest]} tokens, and the maximum context length is {limit} tokens; shorten "
            "it, or set truncate_prompt_tokens to -1, so that the rest is left out.",
            param="input",
            code=CONTEXT_LENGTH_EXCEEDED,
        )
    vectors = np.asarray(embedder.embed_documents(texts), dtype="<f4")
    tokens = sum(min(count, limit) for count in counts)

    def encode(vector: Any) -> Any:
        is_base64 = body.encoding_format == "base64"
        return base64.b64encode(vector.tobytes()).decode() if is_base64 else vector.tolist()

    data = [{"object": "embedding", "index": index, "embedding": encode(each)} for index, each in enumerate(vectors)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    if left_out := sum(counts) - tokens:
        usage["truncated_tokens"] = left_out
    return {"object": "list", "data": data, "model": embedder.name, "usage": usage}


@router.post("/v1/rerank", tags=["Retrieval"])
async def rerank(body: RerankRequest, request: Request, _: Annotated[Access, Depends(access_of)]) -> dict[str, Any]:
    """Sort texts by how well they answer a query, best first."""
    service = service_of(request)
    if service.reranker is None and service.embedder is None:
        raise ApiError(404, "This server has no reranker; start it with --index or --embedder.", param="model")
    if len(body.documents) > MAX_TEXTS:
        raise unsupported_parameter(
            "documents", f"There are {len(body.documents)} documents; the limit is {MAX_TEXTS}."
        )
    return await asyncio.to_thread(_rerank, service.reranker, service.embedder, body)


def _rerank(reranker: Reranker | None, embedder: Embedder | None, body: RerankRequest) -> dict[str, Any]:
    texts = [each.text if isinstance(each, Reference) else each for each in body.documents]
    passages = [Passage(text, str(index), "", 0, len(text)) for index, text in enumerate(texts)]
    if reranker is not None:
        found = [(int(each.id), float(each.score or 0.0)) for each in reranker.rerank(body.query, passages)]
    elif embedder is not None:
        scores = embedder.embed_documents(texts) @ embedder.embed_queries([body.query])[0]
        found = [(index, float(scores[index])) for index in np.argsort(-scores, kind="stable").tolist()]
    results = [
        {
            "index": index,
            "relevance_score": score,
            **({"document": {"text": texts[index]}} if body.return_documents else {}),
        }
        for index, score in found[: body.top_n]
    ]
    name = reranker.name if reranker is not None else embedder.name if embedder is not None else ""
    # Cohere's and Jina's clients read `results`, Voyage's and Continue `data`.
    return {"object": "list", "model": name, "results": results, "data": results}


@router.get("/passages/{identifier}", tags=["Retrieval"])
def passage_by_id(
    identifier: str,
    request: Request,
    access: Annotated[Access, Depends(access_of)],
    collection: str | None = None,
) -> dict[str, Any]:
    """Return the passage with an id; citations contain such ids.

    The passage is searched in the given collection, or else in all collections that the key may
    read.
    """
    service = service_of(request)
    chosen = [service.collection(collection, access)] if collection else service.readable(access).values()
    passages = (each.index.passage(identifier) for each in chosen)
    found = next((each for each in passages if each is not None), None)
    if found is None:
        raise ApiError(404, NO_PASSAGE)
    return passage_object(found)
