"""A LangChain Runnable for retrieval-augmented generation: from a question to context, answer and citations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnableSerializable,
)

from antiphon.accel.text.messages import Message
from antiphon.accel.text.parameters import ContextLengthError
from antiphon.integrations.generation_fields import NUM_MARKED
from antiphon.integrations.langchain.base_model import ContextOverflowLengthError
from antiphon.integrations.langchain.chat_messages import chat_messages
from antiphon.integrations.langchain.documents import passages_of
from antiphon.integrations.langchain.outputs import CITATIONS
from antiphon.pipelines.question import Question
from antiphon.pipelines.request_plan import RequestPlan, TurnContext, plan_request

HISTORY = "chat_history"
"""The key of a chain's input that holds the earlier messages of the conversation."""

ChainInput = str | Mapping[str, Any]
"""A question, or a mapping with the key "question", the earlier messages as "chat_history", and other variables of the
prompt template."""


def retrieval_chain(
    chat: Any, retriever: Runnable[str, list[Document]], prompt: BasePromptTemplate[Any] | None = None
) -> Runnable[ChainInput, dict[str, Any]]:
    """Return a chain from a question to "question", "context" (documents), "answer" (a message) and "citations".

    A follow-up question is completed with the "chat_history" before documents are retrieved. For an
    extractive model, the documents with the lines that answer best come first, and the prompt
    contains only these documents.

    Args:
        prompt: template with the variables "context" and "question". None: the model's own prompt format, with the
            conversation and as many documents as fit the context window.
    """
    given: RunnableSerializable[Any, Any] = RunnableParallel(asked=_question, given=RunnablePassthrough())
    search = RunnableLambda(lambda found: found["asked"].complete) | retriever
    found = given.assign(question=lambda found: found["asked"].text, context=search)
    if prompt is None:
        found = found.assign(planned=partial(_plan, chat)).assign(context=lambda found: found["planned"].documents)
    answered = found.assign(answer=RunnableLambda(partial(_answer_chain, chat, prompt)))
    cited = answered.assign(citations=lambda found: found["answer"].additional_kwargs.get(CITATIONS, []))
    return cited.pick(["question", "context", "answer", "citations"])


def _question(given: ChainInput) -> Question:
    """Return the question. Its complete form is used to retrieve documents."""
    question = given.get("question") if isinstance(given, Mapping) else given
    if isinstance(question, str):
        return Question.of(question, _history(given))
    raise TypeError(f"The input is {given!r}; pass a question as text, or a mapping with 'question'.")


def _history(given: ChainInput) -> list[Message]:
    earlier = given.get(HISTORY) if isinstance(given, Mapping) else None
    return chat_messages(convert_to_messages(earlier or ()))


def _found_documents(found: Mapping[str, Any]) -> list[Document]:
    """Return the documents of a question, or raise an error if there are none."""
    documents: list[Document] = found["context"]
    if not documents:
        raise ValueError(f"The search found no document for {found['asked'].complete!r}; an answer needs at least one.")
    return documents


class _Planned:
    """The plan of a request, and documents in the order of the plan's passages. Both are hidden from traces."""

    def __init__(self, plan: RequestPlan, documents: list[Document]) -> None:
        self.plan = plan
        self.documents = documents

    def __repr__(self) -> str:
        return "plan"


def _plan(chat: Any, found: dict[str, Any]) -> _Planned:
    question, earlier = found["asked"], _history(found["given"])
    documents = _found_documents(found)
    passages = passages_of(documents, "documents")
    numbered = [replace(passage, id=str(place)) for place, passage in enumerate(passages)]
    try:
        plan = plan_request(
            chat.language_model,
            question,
            numbered,
            context=TurnContext.of(earlier),
            stop=chat.stop or (),
            max_new_tokens=chat.max_tokens,
            thinking=chat.thinking,
            template_variables=chat.template_variables,
        )
    except ContextLengthError as error:
        raise ContextOverflowLengthError(str(error)) from error
    return _Planned(plan, [documents[int(passage.id)] for passage in plan.passages])


def _answer_chain(chat: Any, prompt: BasePromptTemplate[Any] | None, found: dict[str, Any]) -> Any:
    """Return the Runnable that answers this question; LangChain runs and streams it."""
    question, documents = found["question"], _found_documents(found)
    if prompt is not None:
        more = found["given"] if isinstance(found["given"], Mapping) else {}
        context = "\n\n".join(document.page_content for document in documents)
        values = {**more, "question": question, "context": context}
        return RunnableLambda(lambda _: prompt.invoke(values)) | chat.bind(references=documents)
    plan: RequestPlan = found["planned"].plan
    planned: dict[str, Any] = {
        "response_prefix": plan.response_prefix or None,
        "thinking": plan.thinking,
        "stop": list(plan.stop) or None,
        "max_tokens": plan.parameters["max_new_tokens"],
        NUM_MARKED: plan.num_marked or None,
    }
    options = {name: value for name, value in planned.items() if value is not None}  # False turns thinking off
    return RunnableLambda(lambda _: _messages(plan)) | chat.bind(references=documents, **options)


def _messages(plan: RequestPlan) -> list[BaseMessage]:
    content = plan.prompt.content
    return convert_to_messages([("user", content)] if isinstance(content, str) else [dict(turn) for turn in content])
