"""The state of one server (models, settings, tenants, request queue, metrics), which starts its requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request

from antiphon.accel import RemoteLanguageModel, TextModel
from antiphon.accel.drafting.drafters import RecyclingTable
from antiphon.accel.text.messages import Conversation, PromptInput
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.request_plan import (
    RequestPlan,
    TurnContext,
    default_max_new_tokens,
    passage_references,
    plan_text,
)
from antiphon.pipelines.server.access_control import Access, AccessKeys, RateLimit
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.errors import CONTEXT_LENGTH_EXCEEDED, ApiError, unsupported_parameter
from antiphon.pipelines.server.metrics import ServerMetrics
from antiphon.pipelines.server.passage_filter import check_filter
from antiphon.pipelines.server.request_queue import GenerationJob, RequestQueue, Started
from antiphon.pipelines.server.request_schemas import ChatRequest, SamplingRequest
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import RECYCLING_ENTRIES, Tenant, Tenants
from antiphon.pipelines.tracing import Span, start_generation
from antiphon.retrieval import Embedder, MetadataFilter, Passage, Reranker


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that clients can request by name.

    Attributes:
        rag: the pipeline that answers from documents; None: the language model alone.
        collection: the name of the collection with the documents.
    """

    id: str
    language_model: TextModel
    rag: Rag | None = None
    collection: str | None = None

    @property
    def model_id(self) -> str:
        """The model's name without the collection's name."""
        return self.id if self.collection is None else self.id.removesuffix(f"+{self.collection}")


def _plan_answer(
    served: ServedModel,
    rag: Rag,
    prompt: PromptInput,
    parameters: Mapping[str, Any],
    references: tuple[Passage, ...],
    where: MetadataFilter | None,
) -> RequestPlan:
    """Plan an answer from documents: the last message is the question, the earlier messages are the conversation."""
    if not isinstance(prompt, Conversation) or not prompt.messages:
        raise unsupported_parameter("messages", f"The model {served.id!r} answers questions; use /v1/chat/completions.")
    *earlier, last = prompt.messages
    # Tools that the model may call are ignored: clients offer theirs with every request.
    if last["role"] != "user" or prompt.assistant_prefix:
        raise unsupported_parameter(
            "messages", f"The model {served.id!r} needs a last message of the user, and calls no tools."
        )
    check_filter(where)
    context = TurnContext.of(earlier, passage_references(references))
    plan = rag.plan(
        rag.complete_question(str(last["content"]), context),
        where=where,
        context=context,
        thinking=prompt.thinking,
        template_variables=prompt.template_variables,
        **parameters,
    )
    return replace(plan, passages=(*plan.passages, *references))


NO_COLLECTIONS = "This server has no index for documents; start it with --index."


@dataclass(frozen=True, slots=True)
class Service:
    """The state of a server that its endpoints share.

    Attributes:
        models: the models by name: the language model alone, and the language model with each collection.
        tenants: prefix caches and draft statistics of each tenant.
        rate_limit: limits the requests of each key.
        created: when the server started, in seconds since the epoch.
        embedder: the embedder of /v1/embeddings.
        reranker: the reranker of /v1/rerank.
        quotes: the thread that searches the best quotes.
    """

    models: Mapping[str, ServedModel]
    collections: Mapping[str, Collection]
    settings: ServerSettings
    tenants: Tenants
    queue: RequestQueue
    metrics: ServerMetrics
    keys: AccessKeys
    rate_limit: RateLimit
    created: int = field(default_factory=lambda: int(time.time()))
    embedder: Embedder | None = None
    reranker: Reranker | None = None
    quotes: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="antiphon-quote")
    )

    def access(self, authorization: str | None) -> Access:
        """Return the rights that the ``Authorization`` header gives a request, and count the request.

        Raises:
            ApiError: 401, the header is missing or its key is not accepted; 429, the key has
                reached its rate limit.
        """
        access = self.keys.access(authorization)
        self.rate_limit.count(access)
        return access

    def readable(self, access: Access) -> Mapping[str, Collection]:
        """Return the collections that a request may read, by name."""
        return {name: each for name, each in self.collections.items() if access.may_read(name)}

    def collection(self, name: str | None, access: Access, *, write: bool = False) -> Collection:
        """Return a collection.

        Args:
            name: the collection's name; None: the only collection that the request may read.

        Raises:
            ApiError: 404, there is no such collection or the request may not read it (the message
                is the same); 403, the request may not change it; 400, no name is given although the
                request may read several.
        """
        readable = self.readable(access)
        names = ", ".join(map(repr, readable))
        if name is None and len(readable) > 1:
            raise ApiError(400, f"Choose a collection: {names}.", param="collection", code="collection_needed")
        found = readable.get(next(iter(readable), "") if name is None else name)
        if found is None:
            message = (
                NO_COLLECTIONS if name is None else f"There is no collection {name!r}; there are {names or 'none'}."
            )
            raise ApiError(404, message, param="collection", code="collection_not_found")
        if write and not access.may_write(found.name):
            raise ApiError(403, f"This API key may read the collection {found.name!r}, but not change it.")
        return found

    def readable_models(self, access: Access) -> Mapping[str, ServedModel]:
        """Return the models that a request may use: the language model, and models of collections it may read."""
        return {
            name: each
            for name, each in self.models.items()
            if each.collection is None or access.may_read(each.collection)
        }

    def model(self, name: str, access: Access, collection: str | None = None) -> ServedModel:
        """Return the model of this name.

        Args:
            name: the name; "model+collection" answers from a collection.
            collection: the collection to answer from, if it is not in the name.

        Raises:
            ApiError: 404, there is no such model or the request may not use it. In both cases the
                message is the same, and lists the models that the request may use.
        """
        readable = self.readable_models(access)
        full = f"{name}+{collection}" if collection is not None and not name.endswith(f"+{collection}") else name
        if full not in readable:
            names = ", ".join(map(repr, readable))
            message = f"There is no model {full!r}; this server has {names}."
            raise ApiError(404, message, param="model", code="model_not_found")
        return readable[full]

    def max_new_tokens(self, request: SamplingRequest, served: ServedModel) -> int:
        """Return the maximum number of tokens of the completion, at most the server's limit."""
        completion = request.max_completion_tokens if isinstance(request, ChatRequest) else None
        requested, limit = completion or request.max_tokens, self.settings.max_output_tokens
        default = limit if served.rag is None else default_max_new_tokens(served.language_model)
        return min(requested or default, limit)

    def submit(
        self, starts: Sequence[Callable[..., Started]], served: ServedModel, key: str, user: str | None
    ) -> list[GenerationJob]:
        """Queue generations and return their jobs.

        Args:
            starts: functions that start the generations, called in the decoding threads; see `start`.
            key: the digest of the API key, from `Access`.
            user: the request's ``user`` field.

        Raises:
            ApiError: 429, the queue is full; 503, the server is shutting down.
        """
        tenant = self.tenants.of(key, user, served.collection)
        jobs = [GenerationJob(partial(start, tenant=tenant), tenant.name) for start in starts]
        self.queue.submit(jobs)
        return jobs

    def start(
        self,
        served: ServedModel,
        prompt: PromptInput,
        parameters: Mapping[str, Any],
        tenant: Tenant,
        *,
        references: tuple[Passage, ...] = (),
        predicted: tuple[str, ...] = (),
        where: MetadataFilter | None = None,
        with_quote: bool = False,
    ) -> Started:
        """Plan a request and start its generation, which reuses a prefix cache of its tenant.

        Args:
            references: the client's passages, which the answer may cite. They are also references
                for drafting.
            predicted: predicted texts. They are references for drafting, and are never cited.
            with_quote: search the best quote of the passages during the prefill.

        Raises:
            ApiError: the prompt is too long for this server, or it has no question for the documents.
            ValueError: `LanguageModel.stream` refuses the request, no passage was found, or not
                even one fits.
        """
        model = served.language_model
        if served.rag is not None:
            plan = _plan_answer(served, served.rag, prompt, parameters, references, where)
        elif where is not None:
            raise unsupported_parameter("where", f"where filters documents, and the model {served.id!r} has none.")
        else:
            with Span("prompt"):
                plan = plan_text(model, prompt, references, parameters)
        limit, count = self.settings.max_prompt_tokens, len(plan.prompt_tokens)
        if limit is not None and count > limit:
            raise ApiError(
                413,
                f"The prompt has {count} tokens; the limit of this server is {limit}: its maximum context length is "
                f"{limit} tokens. Shorten the prompt.",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        plan = replace(plan, references=(*predicted, *plan.references))
        prefix = tenant.take(plan.prompt_tokens)
        keep_prefix = partial(self.tenants.keep, tenant, tuple(plan.prompt_tokens), prefix)
        operation = "chat" if isinstance(prompt, Conversation) else "text_completion"
        span = start_generation(operation, served.model_id, model.name, plan.parameters)
        try:
            # A remote server has its own prefix caches and statistics.
            is_local = not isinstance(model, RemoteLanguageModel)
            own: dict[str, Any] = {"prefix": prefix, "recycling": tenant.table} if is_local else {}
            stream: Any = plan.start(model, **own)
        except BaseException as error:
            span.end(error)
            keep_prefix()
            raise
        quote = self.quotes.submit(plan.quote) if with_quote and plan.quote is not None else None
        return Started(stream, plan, keep_prefix, span, quote)


def service_of(request: Request) -> Service:
    """Return the service of the application that received the request."""
    service: Service = request.app.state.service
    return service


def access_of(request: Request) -> Access:
    """Check the request's API key and return its rights; see `Service.access`."""
    return service_of(request).access(request.headers.get("authorization"))


def collection_of(
    request: Request, access: Annotated[Access, Depends(access_of)], collection: str | None = None
) -> Collection:
    """Return the collection that a request names, or the only collection; see `Service.collection`."""
    return service_of(request).collection(collection, access)


ChosenCollection = Annotated[Collection, Depends(collection_of)]
"""The parameter of an endpoint that reads a collection."""


def make_service(
    language_model: TextModel,
    settings: ServerSettings,
    *,
    name: str,
    embedder: Embedder | None = None,
    reranker: Reranker | None = None,
    collections: Sequence[Collection] = (),
    keys: AccessKeys | None = None,
) -> Service:
    """Make the service for a language model and for answers from documents.

    Args:
        embedder: the embedder of /v1/embeddings; None: the endpoint answers 404.
        reranker: the reranker of /v1/rerank; None: passages are ranked by the embedder.
        collections: documents with their pipelines, each served as ``name+collection``.
        keys: the accepted API keys; None: the keys in the settings, with every right.
    """
    # A model with its own prompt format answers from documents alone.
    models = {name: ServedModel(name, language_model)} if language_model.prompt_format is None else {}
    by_name = {each.name: each for each in collections}
    for each in by_name.values():
        full = f"{name}+{each.name}"
        models[full] = ServedModel(full, each.rag.language_model, each.rag, each.name)
    metrics = ServerMetrics()
    make_table = partial(RecyclingTable, language_model.name, entries=RECYCLING_ENTRIES)
    tenants = Tenants(make_table, max_tenants=settings.max_tenants, prefix_cache_tokens=settings.prefix_cache_tokens)
    queue = RequestQueue(
        max_running=settings.max_running, max_waiting=settings.max_waiting, report=metrics.count_generation
    )
    metrics.add_gauge("generations_running", "Generations that are being decoded.", lambda: queue.running)
    metrics.add_gauge("generations_waiting", "Generations that wait in the queue.", lambda: queue.waiting)
    metrics.add_gauge("prefix_cache_tokens", "Tokens in the prefix caches.", lambda: tenants.cached_tokens)
    return Service(
        models,
        by_name,
        settings,
        tenants,
        queue,
        metrics,
        AccessKeys(settings.api_keys) if keys is None else keys,
        RateLimit(settings.requests_per_minute),
        embedder=embedder,
        reranker=reranker,
    )
