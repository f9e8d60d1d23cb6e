"""One server's parts together: models, limits, tenants, the scheduler and figures. Knows no endpoint."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock

from fastapi import Request

from antiphon.accel import LanguageModel
from antiphon.accel.drafting.drafters import RunnersUp
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server.errors import ApiError
from antiphon.pipelines.server.jobs import Scheduler, TextJob
from antiphon.pipelines.server.metrics import ServerMetrics
from antiphon.pipelines.server.requests import ChatRequest, SamplingRequest
from antiphon.pipelines.server.served import Beginning, ServedModel, TextWanted
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import ENTRIES, Tenants, check_key
from antiphon.retrieval import Embedder, Reranker

RAG_TOKENS = 256
"""The longest answer from documents where a request does not say."""


@dataclass(frozen=True, slots=True)
class Service:
    """What endpoints work with."""

    models: Mapping[str, ServedModel]
    settings: ServerSettings
    tenants: Tenants
    scheduler: Scheduler
    metrics: ServerMetrics
    beginning: Beginning
    started: int = field(default_factory=lambda: int(time.time()))
    embedder: Embedder | None = None
    reranker: Reranker | None = None
    uploads: Path | None = None
    changing: Lock = field(default_factory=Lock)

    def model(self, name: str) -> ServedModel:
        """The model of this name.

        Raises:
            ApiError: there is none; the message names those that there are.
        """
        if name not in self.models:
            names = ", ".join(map(repr, self.models))
            message = f"There is no model {name!r}; this server has {names}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.models[name]

    def tokens_of(self, request: SamplingRequest, served: ServedModel) -> int:
        """How many tokens the answer may have.

        Raises:
            ApiError: more are asked for than this server writes.
        """
        completion = request.max_completion_tokens if isinstance(request, ChatRequest) else None
        param = "max_tokens" if completion is None else "max_completion_tokens"
        asked = request.max_tokens if completion is None else completion
        most = self.settings.max_output_tokens
        if asked is not None and asked > most:
            raise ApiError(400, f"{param} is {asked}; this server writes {most} tokens at most.", param=param)
        return asked or (most if served.rag is None else min(RAG_TOKENS, most))

    def submit(self, wanted: list[TextWanted], served: ServedModel, key: str, user: str | None) -> list[TextJob]:
        """Jobs for these texts, on their way.

        Raises:
            ApiError: there is no room for them.
        """
        tenant = self.tenants.of(key, user)
        jobs = [TextJob(partial(self.beginning.answer, served, each, tenant), tenant.name) for each in wanted]
        self.scheduler.submit(jobs)
        return jobs


def service_of(request: Request) -> Service:
    """The service of the application that a request came to."""
    service: Service = request.app.state.service
    return service


def key_of(request: Request) -> str:
    """The digest of the request's key; see `check_key`."""
    return check_key(request.headers.get("authorization"), service_of(request).settings.keys)


def make_service(
    language_model: LanguageModel,
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
    """A service of a model called ``name``, and with ``rag`` of the one that answers from its documents beside it.

    Uploaded files are kept in the folder ``uploads``; without one none are taken.
    """
    models = {name: ServedModel(name, language_model)}
    if rag is not None:
        models[f"{name}+{docs}"] = ServedModel(f"{name}+{docs}", language_model, rag, stop)
    metrics = ServerMetrics()
    make_table = partial(RunnersUp, language_model.name, entries=ENTRIES)
    tenants = Tenants(make_table, most=settings.tenants, prefix_tokens=settings.prefix_tokens)
    scheduler = Scheduler(parallel=settings.parallel, waiting=settings.queue, watcher=metrics)
    metrics.watch("texts_running", "Texts that are being decoded.", lambda: scheduler.running)
    metrics.watch("texts_waiting", "Texts that wait to be decoded.", lambda: scheduler.waiting)
    metrics.watch("prefix_tokens_held", "Tokens of prompts that are held for the next ones.", lambda: tenants.held)
    beginning = Beginning(settings, tenants)
    return Service(
        models,
        settings,
        tenants,
        scheduler,
        metrics,
        beginning,
        embedder=embedder,
        reranker=reranker,
        uploads=None if settings.read_only else uploads,
    )
