"""Starts generations: answers from documents, or text of the language model alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from antiphon.accel import RemoteLanguageModel, TextModel
from antiphon.accel.text.messages import Conversation, PromptInput
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.references import passage_references
from antiphon.pipelines.request_plan import RequestPlan, TurnContext, plan_text
from antiphon.pipelines.server.errors import CONTEXT_LENGTH_EXCEEDED, ApiError, unsupported_parameter
from antiphon.pipelines.server.passage_filter import check_filter
from antiphon.pipelines.server.request_queue import Started
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import Tenant, Tenants
from antiphon.pipelines.tracing import Span, start_generation
from antiphon.retrieval import MetadataFilter, Passage


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


class RequestStarter:
    """Starts generations. Each generation reuses a prefix cache of its tenant.

    Args:
        settings: the server's settings, which limit the length of prompts.
    """

    def __init__(self, settings: ServerSettings, tenants: Tenants) -> None:
        self._settings = settings
        self._tenants = tenants
        self._quotes = ThreadPoolExecutor(1, thread_name_prefix="antiphon-quote")

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
        """Plan a request and start its generation.

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
        self._check_length(plan.prompt_tokens)
        plan = replace(plan, references=(*predicted, *plan.references))
        prefix = tenant.take(plan.prompt_tokens)
        keep_prefix = partial(self._tenants.keep, tenant, tuple(plan.prompt_tokens), prefix)
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
        quote = self._quotes.submit(plan.quote) if with_quote and plan.quote is not None else None
        return Started(stream, plan, keep_prefix, span, quote)

    def _check_length(self, prompt_tokens: Sequence[int]) -> None:
        limit = self._settings.max_prompt_tokens
        if limit is not None and len(prompt_tokens) > limit:
            raise ApiError(
                413,
                f"The prompt has {len(prompt_tokens)} tokens; the limit of this server is {limit}: its maximum context "
                f"length is {limit} tokens. Shorten the prompt.",
                code=CONTEXT_LENGTH_EXCEEDED,
            )


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
