"""Retrieval-augmented generation as one LangChain Runnable from a question to context, answer and citations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, Protocol

from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, convert_to_messages
from langchain_core.messages.content import Citation
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSerializable,
)

from antiphon.accel.text.parameters import Settings
from antiphon.integrations.langchain.documents import passages_of
from antiphon.integrations.langchain.outputs import CITATIONS
from antiphon.pipelines.prompt import PromptFormat, prompt_format
from antiphon.pipelines.rag import fit_passages, selected_passages_first

Question = str | Mapping[str, Any]
"""A question, or a mapping with the key "question" and other variables of the prompt template."""


class ReferenceChatModel(Protocol):
    """A LangChain chat model that accepts references, with the limits that the prompt has to fit."""

    language_model: Any
    max_tokens: int | None
    stop: Any

    def bind(self, **kwargs: Any) -> Runnable[Any, AIMessage]:
        """See `langchain_core.runnables.Runnable.bind`."""


def retrieval_chain(
    chat: ReferenceChatModel,
    retriever: Runnable[str, list[Document]],
    prompt: BasePromptTemplate[Any] | None = None,
) -> Runnable[Question, dict[str, Any]]:
    """Return a chain from a question to "question", "context" (documents), "answer" (a message) and "citations".

    With an extractive model, the documents whose lines answer best come first, and only they are in its prompt.

    Args:
        chat: the chat model.
        retriever: returns documents for a question.
        prompt: template of "context" and "question". None uses the model's own prompt format, with as many documents as
            fit its context window.
    """
    found: RunnableSerializable[Any, Any] = RunnableParallel(
        question=RunnableLambda(_question),
        context=RunnableLambda(_question) | retriever,
        given=RunnablePassthrough(),
    )
    if prompt is None:
        found = found.assign(chosen=RunnableLambda(partial(_select_documents, chat)))
        found = found.assign(context=RunnableLambda(lambda found: found["chosen"][0]))
    answered = found.assign(answer=RunnableLambda(partial(_answer_chain, chat, prompt)))
    cited = answered.assign(citations=itemgetter("answer") | RunnableLambda(_citations))
    return cited.pick(["question", "context", "answer", "citations"])


def _question(given: Question) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, Mapping) and isinstance(question := given.get("question"), str):
        return question
    raise TypeError(f"The input is {given!r}; pass a question as text, or a mapping with 'question'.")


def _select_documents(chat: ReferenceChatModel, found: dict[str, Any]) -> tuple[list[Document], int, Mapping[str, Any]]:
    """Return the documents with the selected ones first, the number of selected ones, and their generation options."""
    documents = found["context"]
    passages = passages_of(documents, "documents")
    numbered = [replace(passage, id=str(place)) for place, passage in enumerate(passages)]
    ordered, count, options = selected_passages_first(
        chat.language_model, found["question"], numbered, max_new_tokens=_max_new_tokens(chat)
    )
    return [documents[int(passage.id)] for passage in ordered], count, options


def _max_new_tokens(chat: ReferenceChatModel) -> int:
    return chat.max_tokens or Settings().max_new_tokens


def _answer_chain(
    chat: ReferenceChatModel, prompt: BasePromptTemplate[Any] | None, found: dict[str, Any]
) -> Runnable[Any, Any]:
    """Return the Runnable that answers this question; LangChain runs and streams it."""
    question, documents = found["question"], found["context"]
    if not documents:
        raise ValueError(f"The search found no document for {question!r}; an answer needs at least one.")
    if prompt is not None:
        more = found["given"] if isinstance(found["given"], Mapping) else {}
        context = "\n\n".join(document.page_content for document in documents)
        values = {**more, "question": question, "context": context}
        return RunnableLambda(lambda _: prompt.invoke(values)) | chat.bind(references=documents)
    _, count, options = found["chosen"]
    documents = documents[:count]
    messages, stop = _prompt_messages(chat, prompt_format(chat.language_model), question, documents)
    stop = (*stop, *options.get("stop", ()))
    stops = {"stop": [*(chat.stop or ()), *stop]} if stop else {}
    bound = chat.bind(references=documents, **{**options, **stops})
    return RunnableLambda(lambda _: messages) | bound


def _prompt_messages(
    chat: ReferenceChatModel, form: PromptFormat, question: str, documents: list[Document]
) -> tuple[list[BaseMessage], tuple[str, ...]]:
    passages = tuple(passages_of(documents, "documents"))
    prompt = fit_passages(partial(form, question), passages, chat.language_model, _max_new_tokens(chat))[1]
    if isinstance(prompt.content, str):
        return convert_to_messages([("user", prompt.content)]), prompt.stop
    return convert_to_messages([dict(turn) for turn in prompt.content]), prompt.stop


def _citations(answer: AIMessage) -> list[Citation]:
    found: list[Citation] = answer.additional_kwargs.get(CITATIONS, [])
    return found
