"""Starts the generation of a request: of the model alone, or an answer from documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from antiphon.accel import LanguageModel
from antiphon.accel.text.messages import Conversation, Message, PromptInput
from antiphon.pipelines.prompt import Prompt
from antiphon.pipelines.rag import Rag, fit_passages
from antiphon.pipelines.references import passage_references
from antiphon.pipelines.server.errors import ApiError, unsupported_parameter
from antiphon.pipelines.server.request_queue import Started
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import Tenant, Tenants
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model name that clients can request.

    Attributes:
        id: the name.
        language_model: the language model.
        rag: the pipeline that answers from documents; None: the language model alone.
        stop: default stop strings of answers from documents.
    """

    id: str
    language_model: LanguageModel
    rag: Rag | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One text to generate.

    Attributes:
        prompt: the prompt.
        parameters: further parameters of `LanguageModel.stream`.
        passages: passages that are drafted from and may be cited.
        predicted: texts that are drafted from only.
    """

    prompt: PromptInput
    parameters: Mapping[str, Any]
    passages: tuple[Passage, ...] = ()
    predicted: tuple[str, ...] = ()


class RequestStarter:
    """Starts generations, each from the prefix cache of its tenant.

    Args:
        settings: the longest prompt.
        tenants: keeps the prefix caches.
    """

    def __init__(self, settings: ServerSettings, tenants: Tenants) -> None:
        self._settings = settings
        self._tenants = tenants

    def start(self, served: ServedModel, request: GenerationRequest, tenant: Tenant) -> Started:
        """Start a generation.

        Args:
            served: the model; if it has a pipeline, it answers the last message from its documents.
            request: what to generate.
            tenant: the tenant whose prefix cache is used.

        Raises:
            ApiError: the prompt is too long for this server, or not a question to documents.
            ValueError: `LanguageModel.stream` refuses the request, nothing was found, or not even one passage fits.
        """
        if served.rag is not None:
            return self._answer(served, served.rag, request, tenant)
        references = [*request.predicted, *passage_references(request.passages)]
        return self._start(served, request, references, tenant)

    def _answer(self, served: ServedModel, rag: Rag, request: GenerationRequest, tenant: Tenant) -> Started:
        """Start an answer from documents: the last message is the question, earlier ones are its context."""
        if not isinstance(request.prompt, Conversation) or not request.prompt.messages:
            raise unsupported_parameter(
                "messages", f"The model {served.id!r} answers questions; use /v1/chat/completions."
            )
        *earlier, last = request.prompt.messages
        if last["role"] != "user" or request.prompt.tools or request.prompt.assistant_prefix:
            raise unsupported_parameter(
                "messages", f"The model {served.id!r} needs a last message of the user, and no tools."
            )
        question, parameters = str(last["content"]), dict(request.parameters)
        max_new_tokens = parameters["max_new_tokens"]
        # 1. Retrieve.
        found = rag.retrieve(question)
        # 2. Build the prompt, of at least half of the context window: a long answer may not displace all passages.
        max_answer = (rag.language_model.context_window or max_new_tokens * 2) // 2
        make = partial(_prompt_with_history, rag, question, earlier)
        passages, prompt, tokenized = fit_passages(make, found, rag.language_model, min(max_new_tokens, max_answer))
        # 3. Generate, drafting from the prediction, the retrieved passages and the request's references.
        parameters["stop"] = [*parameters.get("stop", served.stop), *prompt.stop]
        references = [*request.predicted, *(prompt.answers or passage_references(passages))]
        references += passage_references(request.passages)
        citable = (*passages, *request.passages)
        return self._start(served, GenerationRequest(tokenized, parameters, citable), references, tenant)

    def _start(
        self, served: ServedModel, request: GenerationRequest, references: Sequence[str], tenant: Tenant
    ) -> Started:
        """Call `LanguageModel.stream` with the tenant's prefix cache and token recycling table."""
        model = served.language_model
        tokenized = model.tokenize(request.prompt)
        max_tokens = self._settings.max_prompt_tokens
        if max_tokens is not None and tokenized.count > max_tokens:
            raise ApiError(
                413, f"The prompt has {tokenized.count} tokens; the limit of this server is {max_tokens}. Shorten it."
            )
        prefix = tenant.take(tokenized.tokens)
        keep_prefix = partial(self._tenants.keep, tenant, tokenized.tokens, prefix)
        try:
            stream = model.stream(
                tokenized, references=references, prefix=prefix, recycling=tenant.table, **request.parameters
            )
        except BaseException:
            keep_prefix()
            raise
        return Started(stream, request.passages, keep_prefix)


def _prompt_with_history(rag: Rag, question: str, earlier: Sequence[Message], passages: Sequence[Passage]) -> Prompt:
    """Return the prompt of a question and its passages, with the earlier messages between instructions and question."""
    own = rag.prompt(question, passages)
    if isinstance(own.content, str):
        return own
    history = [message for message in earlier if message["role"] in ("user", "assistant")]
    client_instructions = [message for message in earlier if message["role"] == "system"]
    instructions = [message for message in own.content if message["role"] == "system"]
    turn = [message for message in own.content if message["role"] != "system"]
    return Prompt((*_merge(instructions, client_instructions), *history, *turn), own.stop, own.answers)


def _merge(instructions: Sequence[Message], client_instructions: Sequence[Message]) -> list[Message]:
    """Return all instructions as one system message, because many chat templates accept only one."""
    texts = [str(message["content"]) for message in chain(instructions, client_instructions)]
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
