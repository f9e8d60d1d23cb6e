"""Agent middleware that uses the results of tools as references for the agent's model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage

from antiphon.integrations.langchain.chat import ChatAntiphon
from antiphon.integrations.langchain.documents import references_of
from antiphon.integrations.langchain.outputs import CITATIONS, annotate
from antiphon.integrations.references import HiddenReferences
from antiphon.integrations.vllm.client import references_for
from antiphon.retrieval import Passage

try:
    from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
except ImportError as error:
    raise ImportError("ReferencesMiddleware needs LangChain's agents; run: pip install langchain") from error


class ReferencesMiddleware(AgentMiddleware):
    """Lets an agent's model draft from the results of its tools, and adds citations of these results to its answers.

    The model may be a `ChatAntiphon`, or a ChatOpenAI for a vLLM server with Antiphon's plug-in. A
    ChatOpenAI sends the references in ``extra_body``. Other models do not draft from references,
    but their answers are cited. The citations of an answer are in its
    ``additional_kwargs["citations"]``.
    """

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model with references, and cite its answer."""
        asked, passages = _with_references(request)
        return _cited(handler(asked), passages)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model with references asynchronously, and cite its answer."""
        asked, passages = _with_references(request)
        return _cited(await handler(asked), passages)


def _with_references(request: ModelRequest[Any]) -> tuple[ModelRequest[Any], Sequence[Passage]]:
    """Return the request with references, and the references as passages."""
    messages: list[Any] = [_with_text_as_reference(message) for message in request.messages]
    passages = references_of(messages)
    asked = request.override(messages=messages)
    if not passages or isinstance(request.model, ChatAntiphon) or not hasattr(request.model, "extra_body"):
        return asked, passages
    body = {**(request.model.extra_body or {}), **request.model_settings.get("extra_body", {})}
    for name, values in references_for(passages).items():
        body[name] = {**body.get(name, {}), **values}
    return asked.override(model_settings={**request.model_settings, "extra_body": body}), passages


def _with_text_as_reference(message: BaseMessage) -> BaseMessage:
    """Add the text of a tool's result as a reference, unless the result has documents."""
    if not isinstance(message, ToolMessage) or references_of([message]) or not str(message.text).strip():
        return message
    passage = Passage.at(message.name or "", 0, str(message.text))
    return message.model_copy(update={"artifact": HiddenReferences([passage])})


def _cited(response: ModelResponse[Any], passages: Sequence[Passage]) -> ModelResponse[Any]:
    return replace(response, result=[_with_citations(message, passages) for message in response.result])


def _with_citations(message: BaseMessage, passages: Sequence[Passage]) -> BaseMessage:
    if not isinstance(message, AIMessage) or CITATIONS in message.additional_kwargs:
        return message
    found = annotate(str(message.text), passages)
    kept = message.additional_kwargs
    return message.model_copy(update={"additional_kwargs": {**kept, CITATIONS: found}}) if found else message
