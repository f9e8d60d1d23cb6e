"""The models that a server has by name, and how a text of each begins: a model alone, or with an index beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from antiphon.accel import LanguageModel
from antiphon.accel.text.messages import Conversation, Message, PromptInput
from antiphon.pipelines.prompt import Prompt
from antiphon.pipelines.rag import Rag, fit
from antiphon.pipelines.references import passage_references
from antiphon.pipelines.server.errors import ApiError, refused_error
from antiphon.pipelines.server.jobs import Begun
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.pipelines.server.tenants import ServerTenant, Tenants
from antiphon.retrieval import Passage


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that clients ask for: a language model, and with ``rag`` the documents that it answers from."""

    id: str
    language_model: LanguageModel
    rag: Rag | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TextWanted:
    """One text to be decoded: what is asked, what it may cite, what else it is likely to say, and how.

    ``parameters`` are those of `LanguageModel.stream`.
    """

    prompt: PromptInput
    parameters: Mapping[str, Any]
    passages: tuple[Passage, ...] = ()
    predicted: tuple[str, ...] = ()


class Beginning:
    """Begins texts for tenants, each from what was read for it before."""

    def __init__(self, settings: ServerSettings, tenants: Tenants) -> None:
        self._settings = settings
        self._tenants = tenants

    def text(self, served: ServedModel, wanted: TextWanted, tenant: ServerTenant) -> Begun:
        """The stream of a text that the model continues, or of its answer to a conversation.

        Raises:
            ApiError: the prompt is longer than this server reads.
            ValueError: what `LanguageModel.stream` refuses.
        """
        return self._begin(served, wanted, [*wanted.predicted, *passage_references(wanted.passages)], tenant)

    def _begin(self, served: ServedModel, wanted: TextWanted, references: Sequence[str], tenant: ServerTenant) -> Begun:
        """The stream of a text whose references are known.

        Raises:
            ApiError: the prompt is longer than this server reads.
            ValueError: what `LanguageModel.stream` refuses.
        """
        model = served.language_model
        tokenized = model.tokenize(wanted.prompt)
        most = self._settings.max_prompt_tokens
        if most is not None and tokenized.count > most:
            raise ApiError(413, f"The prompt has {tokenized.count} tokens and this server reads {most}; shorten it.")
        prefix = tenant.take(tokenized.tokens)
        keep = partial(self._tenants.keep, tenant, tokenized.tokens, prefix)
        try:
            stream = model.stream(
                tokenized, references=references, prefix=prefix, recycling=tenant.table, **wanted.parameters
            )
        except BaseException:
            keep()
            raise
        return Begun(stream, wanted.passages, keep)

    def answer(self, served: ServedModel, wanted: TextWanted, tenant: ServerTenant) -> Begun:
        """The stream of an answer from documents: the last message is the question, those before it are in view.

        Raises:
            ApiError: there is no question.
            ValueError: nothing was found, or not even one passage fits.
        """
        rag = served.rag
        if rag is None:
            return self.text(served, wanted, tenant)
        if not isinstance(wanted.prompt, Conversation) or not wanted.prompt.messages:
            raise refused_error("messages", f"The model {served.id!r} answers questions; ask by /v1/chat/completions.")
        *earlier, last = wanted.prompt.messages
        if last["role"] != "user" or wanted.prompt.tools or wanted.prompt.opening:
            raise refused_error(
                "messages", f"The model {served.id!r} answers a last message of the user, without tools."
            )
        question, parameters = str(last["content"]), dict(wanted.parameters)
        found = rag.find(question)
        room = (rag.language_model.context_window or parameters["max_new_tokens"] * 2) // 2
        make = partial(_with_turns, rag, question, earlier)
        passages, prompt, tokenized = fit(make, found, rag.language_model, min(parameters["max_new_tokens"], room))
        parameters["stop"] = [*parameters.get("stop", served.stop), *prompt.stop]
        cited = (*passages, *wanted.passages)
        references = [*wanted.predicted, *(prompt.answers or passage_references(passages))]
        references += passage_references(wanted.passages)
        return self._begin(served, TextWanted(tokenized, parameters, cited), references, tenant)


def _with_turns(rag: Rag, question: str, earlier: Sequence[Message], passages: Sequence[Passage]) -> Prompt:
    """The prompt of a question and its passages, with the turns before it between instructions and question."""
    own = rag.prompt(question, passages)
    if isinstance(own.content, str):
        return own
    said = [message for message in earlier if message["role"] in ("user", "assistant")]
    told = [message for message in earlier if message["role"] == "system"]
    instructions = [message for message in own.content if message["role"] == "system"]
    asked = [message for message in own.content if message["role"] != "system"]
    return Prompt((*_one(instructions, told), *said, *asked), own.stop, own.answers)


def _one(instructions: Sequence[Message], told: Sequence[Message]) -> list[Message]:
    """The prompt's own instructions and the client's, as one message: templates take no more."""
    texts = [str(message["content"]) for message in chain(instructions, told)]
    return [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
