"""Follow-up questions: a question that refers to the conversation, made complete before passages are retrieved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import Message

if TYPE_CHECKING:
    from antiphon.accel import TextModel

REWRITE = (
    "You rewrite the last question of a conversation so that it can be understood without the conversation: put what "
    "its pronouns stand for in their place. You say the rewritten question and nothing else."
)
"""The system message for rewriting a question."""

REWRITE_MESSAGES = 6
"""Number of latest messages in the prompt that rewrites a question."""

QUESTION_TOKENS = 64
"""Maximum length of a rewritten question in tokens."""

MIN_WORDS = 2
"""A question with fewer words than this besides `_FUNCTION_WORDS` needs the conversation."""

_CONNECTIVES = re.compile(r"(and|but|or|so|then|also|why|why not|what about|how about|what else|anything else)\b", re.I)
_REFERENCES = re.compile(
    r"\b(it|its|itself|they|them|their|theirs|themselves|he|him|his|she|her|hers|this|these|those|instead|otherwise|else)\b"
    r"|\bthe (same|other|former|latter)\b|\b(that|there)\b(?=\s*[?.,]|$)"
    r"|\b(do|does|did|about|with|for|to|is|was) that\b",
    re.I,
)
_IMPERSONAL = re.compile(
    r"\b(is|was) it (true|possible|safe|necessary|ok|okay|allowed|legal)\b|\bdoes it (matter|make sense)\b", re.I
)
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\S+",
        "a an the is are was were be do does did can could should would will may might must have has had i you we my "
        "your what which who whom whose when where why how of in on at to for from by with about and or but so not no "
        "if there many much long often",
    )
)
_WORD = re.compile(r"\w[\w'’.-]*")


def is_follow_up(question: str) -> bool:
    """Return whether a question refers to the conversation: by a connective, a pronoun, or because it is very short."""
    words = [word.lower() for word in _WORD.findall(question)]
    if len([word for word in words if word not in _FUNCTION_WORDS]) < MIN_WORDS:
        return True
    text = _IMPERSONAL.sub("", question.strip())
    return bool(_CONNECTIVES.match(text) or _REFERENCES.search(text))


def resolve_question(question: str, history: Sequence[Message]) -> str:
    """Return a question that can be understood without the conversation, by which passages are retrieved.

    A follow-up question is preceded by the question that it refers to: the latest one that is not a follow-up itself,
    with the follow-ups after it. Any other question is returned as it is.

    Args:
        question: the question.
        history: the earlier messages of the conversation, oldest first; only those of the user are read.
    """
    earlier = [str(message.get("content") or "") for message in history if message.get("role") == "user"]
    needed = [question]
    while is_follow_up(needed[0]) and earlier:
        needed.insert(0, earlier.pop().strip())
    return " ".join(part for part in (needed[0], *needed[1:][-1:]) if part)


def rewrite_question(language_model: TextModel, question: str, history: Sequence[Message]) -> str:
    """Rewrite a question so that it can be understood without the conversation, with a short greedy generation.

    Args:
        language_model: the language model.
        question: the question.
        history: the earlier messages, oldest first.

    Returns:
        The rewritten question, or the original one if there is no conversation or the model generates nothing.
    """
    names = {"user": "Question", "assistant": "Answer"}
    shown = [message for message in history if message.get("role") in names][-REWRITE_MESSAGES:]
    if not shown:
        return question
    texts = [str(message.get("content") or "") for message in shown]
    lines = "\n".join(f"{names[message['role']]}: {text}" for message, text in zip(shown, texts, strict=True))
    content = f"{lines}\n\nLast question: {question}\n\nRewritten question:"
    messages = ({"role": "system", "content": REWRITE}, {"role": "user", "content": content})
    completion = language_model.generate(
        messages, references=[question, *texts], max_new_tokens=QUESTION_TOKENS, stop="\n", thinking=False
    )
    return completion.text.strip() or question
