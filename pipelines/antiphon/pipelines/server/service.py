"""The parts of one server: models, settings, tenants, request queue and metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

from fastapi import Request

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.pipelines.extractive_model import ExtractiveModel
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.request_plan import MAX_NEW_TOKENS
from antiphon.pipelines.server.access_control import check_key
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.generation import GenerationRequest, RequestStarter, ServedModel
from antiphon.pipelines.server.metrics import ServerMetrics
from antiphon.pipelines.server.request_queue import GenerationJob, RequestQueue
from antiphon.pipelines.server.request_schemas import ChatRequest, SamplingRequest
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import RECYCLING_ENTRIES, Tenants
from antiphon.retrieval import Embedder, Reranker


@dataclass(frozen=True, slots=True)
class Service:
    """The parts that endpoints use.

    Attributes:
        models: the models by name.
        settings: limits and access rules.
        tenants: prefix caches and draft statistics of each tenant.
        queue: runs generations.
        metrics: Prometheus metrics.
        starter: starts generations.
        created: when the server started, in seconds since the epoch.
        embedder: the embedder of /v1/embeddings.
        reranker: the reranker of /v1/rerank.
        uploads: the folder of uploaded files; None: uploads are refused.
        index_lock: held while the index is changed.
    """

    models: Mapping[str, ServedModel]
    settings: ServerSettings
    tenants: Tenants
    queue: RequestQueue
    metrics: ServerMetrics
    starter: RequestStarter
    created: int = field(default_factory=lambda: int(time.time()))
    embedder: Embedder | None = None
    reranker: Reranker | None = None
    uploads: Path | None = None
    index_lock: Lock = field(default_factory=Lock)

    def model(self, name: str) -> ServedModel:
        """Return the model of this name.

        Raises:
            ApiError: 404, there is no such model; the message lists the models.
        """
        if name not in self.models:
            names = ", ".join(map(repr, self.models))
            message = f"There is no model {name!r}; this server has {names}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.models[name]

    def max_new_tokens(self, request: SamplingRequest, served: ServedModel) -> int:
        """Return the maximum number of tokens of the completion; more than the server's limit is reduced to it.

        Args:
            request: the request body, with ``max_tokens`` or ``max_completion_tokens``.
            served: the model, which decides the default.
        """
        completion = request.max_completion_tokens if isinstance(request, ChatRequest) else None
        requested, limit = completion or request.max_tokens, self.settings.max_output_tokens
        return min(requested or (limit if served.rag is None else MAX_NEW_TOKENS), limit)

    def submit(
        self, requests: list[GenerationRequest], served: ServedModel, key: str, user: str | None
    ) -> list[GenerationJob]:
        """Queue generations and return their jobs.

        Args:
            requests: the texts to generate.
            served: the model.
            key: the digest of the API key, from `key_of`.
            user: the request's ``user`` field.

        Raises:
            ApiError: the queue is full.
        """
        tenant = self.tenants.of(key, user)
        jobs = [GenerationJob(partial(self.starter.start, served, each, tenant), tenant.name) for each in requests]
        self.queue.submit(jobs)
        return jobs


def service_of(request: Request) -> Service:
    """Return the service of the application that received the request."""
    service: Service = request.app.state.service
    return service


def key_of(request: Request) -> str:
    """Check the request's API key and return its digest; see `check_key`."""
    return check_key(request.headers.get("authorization"), service_of(request).settings.api_keys)


def _answering(rag: Rag, language_model: LanguageModel | ExtractiveModel) -> LanguageModel | ExtractiveModel:
    """Return the model of answers from documents: the served one, unless the pipeline quotes without it."""
    return rag.language_model if isinstance(rag.language_model, ExtractiveModel) else language_model


def make_service(
    language_model: LanguageModel | ExtractiveModel,
    settings: ServerSettings,
    *,
    name: str,
    rag: Rag | None = None,
    docs: str = "docs",
    stop: tuple[str, ...] = (),
    embedder: Embedder | None = None,
    reranker: Reranker | None = None,
    uploads: Path | None = None,
) -> Service:
    """Make the service of a language model, and of its answers from documents.

    Args:
        language_model: the language model; with the extractive model only answers from documents are served.
        settings: limits and access rules.
        name: the name of the model for clients.
        rag: the pipeline that answers from documents, served as ``name+docs``; None: the model alone.
        docs: the name of the documents for clients.
        stop: default stop strings of answers from documents.
        embedder: the embedder of /v1/embeddings; None: the endpoint answers 404.
        reranker: the reranker of /v1/rerank; None: the embedder ranks.
        uploads: the folder of uploaded files; None: uploads are refused.
    """
    models = {} if isinstance(language_model, ExtractiveModel) else {name: ServedModel(name, language_model)}
    if rag is not None:
        models[f"{name}+{docs}"] = ServedModel(f"{name}+{docs}", _answering(rag, language_model), rag, stop)
    metrics = ServerMetrics()
    make_table = partial(RecyclingTable, language_model.name, entries=RECYCLING_ENTRIES)
    tenants = Tenants(make_table, max_tenants=settings.max_tenants, prefix_cache_tokens=settings.prefix_cache_tokens)
    queue = RequestQueue(max_running=settings.max_running, max_waiting=settings.max_waiting, observer=metrics)
    metrics.add_gauge("generations_running", "Generations that are being decoded.", lambda: queue.running)
    metrics.add_gauge("generations_waiting", "Generations that wait in the queue.", lambda: queue.waiting)
    metrics.add_gauge("prefix_cache_tokens", "Tokens in the prefix caches.", lambda: tenants.cached_tokens)
    return Service(
        models,
        settings,
        tenants,
        queue,
        metrics,
        RequestStarter(settings, tenants),
        embedder=embedder,
        reranker=reranker,
        uploads=None if settings.read_only else uploads,
    )
