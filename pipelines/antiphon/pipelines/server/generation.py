"""Starts the generation of a request: of the model alone, or an answer from documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from antiphon.accel import LanguageModel
from antiphon.accel.text.messages import Conversation, PromptInput
from antiphon.pipelines.extractive_model import ONLY_QUOTES, ExtractiveModel
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.references import passage_references
from antiphon.pipelines.request_plan import TurnContext
from antiphon.pipelines.server.errors import CONTEXT_LENGTH_EXCEEDED, ApiError, unsupported_parameter
from antiphon.pipelines.server.passage_filter import check_filter
from antiphon.pipelines.server.request_queue import Started
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import Tenant, Tenants
from antiphon.pipelines.tracing import Span, start_generation
from antiphon.retrieval import MetadataFilter, Passage


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model name that clients can request.

    Attributes:
        id: the name.
        language_model: the language model.
        rag: the pipeline that answers from documents; None: the language model alone.
        stop: default stop strings of answers from documents.
        collection: the name of the collection with the documents.
    """

    id: str
    language_model: LanguageModel | ExtractiveModel
    rag: Rag | None = None
    stop: tuple[str, ...] = ()
    collection: str | None = None

    @property
    def model_id(self) -> str:
        """The name without that of the collection."""
        return self.id if self.collection is None else self.id.removesuffix(f"+{self.collection}")


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One text to generate.

    Attributes:
        prompt: the prompt.
        parameters: further parameters of `LanguageModel.stream`.
        passages: passages that are drafted from and may be cited.
        predicted: texts that are drafted from only.
        where: only passages that match this filter are retrieved.
    """

    prompt: PromptInput
    parameters: Mapping[str, Any]
    passages: tuple[Passage, ...] = ()
    predicted: tuple[str, ...] = ()
    where: MetadataFilter | None = None


class RequestStarter:
    """Starts generations, each from the prefix cache of its tenant.

    Args:
        settings: the longest prompt.
    """

    def __init__(self, settings: ServerSettings, tenants: Tenants) -> None:
        self._settings = settings
        self._tenants = tenants

    def start(self, served: ServedModel, request: GenerationRequest, tenant: Tenant) -> Started:
        """Start a generation.

        Raises:
            ApiError: the prompt is too long for this server, or not a question to documents.
            ValueError: `LanguageModel.stream` refuses the request, nothing was found, or not even one passage fits.
        """
        if served.rag is not None:
            return self._answer(served, served.rag, request, tenant)
        if request.where is not None:
            raise unsupported_parameter("where", f"where filters documents, and the model {served.id!r} has none.")
        model = served.language_model
        if isinstance(model, ExtractiveModel):
            raise unsupported_parameter("model", ONLY_QUOTES.format("other texts"))
        with Span("prompt"):
            tokenized = model.tokenize(request.prompt)
        references = [*request.predicted, *passage_references(request.passages)]
        start = partial(model.stream, tokenized, references=references, **request.parameters)
        operation = "chat" if isinstance(request.prompt, Conversation) else "text_completion"
        span = partial(start_generation, operation, served.model_id, model.name, request.parameters)
        return self._start(start, tokenized.tokens, request.passages, tenant, span)

    def _answer(self, served: ServedModel, rag: Rag, request: GenerationRequest, tenant: Tenant) -> Started:
        """Start an answer from documents: the last message is the question, earlier ones are its conversation."""
        if not isinstance(request.prompt, Conversation) or not request.prompt.messages:
            raise unsupported_parameter(
                "messages", f"The model {served.id!r} answers questions; use /v1/chat/completions."
            )
        *earlier, last = request.prompt.messages
        # Tools that the model may call are ignored: clients offer theirs with every request.
        if last["role"] != "user" or request.prompt.assistant_prefix:
            raise unsupported_parameter(
                "messages", f"The model {served.id!r} needs a last message of the user, and calls no tools."
            )
        check_filter(request.where)
        context = TurnContext.of(earlier, passage_references(request.passages))
        options = {"stop": served.stop, **request.parameters}
        plan = rag.plan(
            str(last["content"]),
            where=request.where,
            context=context,
            thinking=request.prompt.thinking,
            template_variables=request.prompt.template_variables,
            **options,
        )
        plan = replace(
            plan,
            passages=(*plan.passages, *request.passages),
            references=(*request.predicted, *plan.references),
        )
        start = partial(plan.start, served.language_model)
        span = partial(start_generation, "chat", served.model_id, served.language_model.name, plan.parameters)
        return self._start(start, plan.prompt_tokens, plan.passages, tenant, span)

    def _start(
        self,
        start: Callable[..., Any],
        tokens: Sequence[int],
        passages: tuple[Passage, ...],
        tenant: Tenant,
        start_span: Callable[[], Span],
    ) -> Started:
        """Start a stream with the tenant's token recycling table and prefix cache, if its prompt is not too long."""
        max_tokens = self._settings.max_prompt_tokens
        if max_tokens is not None and len(tokens) > max_tokens:
            raise ApiError(
                413,
                f"The prompt has {len(tokens)} tokens; the limit of this server is {max_tokens}: its maximum context "
                f"length is {max_tokens} tokens. Shorten the prompt.",
                code=CONTEXT_LENGTH_EXCEEDED,
            )
        prefix = tenant.take(tokens)
        keep_prefix = partial(self._tenants.keep, tenant, tuple(tokens), prefix)
        span = start_span()
        try:
            stream = start(prefix=prefix, recycling=tenant.table)
        except BaseException as error:
            span.end(error)
            keep_prefix()
            raise
        return Started(stream, passages, keep_prefix, span)
