"""Follow-up questions: a question that refers to the conversation, made complete before passages are retrieved."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from antiphon.pipelines.citations import cite
from antiphon.pipelines.selection_rules import RULES
from antiphon.retrieval.keywords import keyword_text

if TYPE_CHECKING:
    from antiphon.accel import TextModel
    from antiphon.accel.text.messages import Message
    from antiphon.retrieval import Passage

REWRITE = (
    "You rewrite the last question of a conversation so that it can be understood without the conversation: put what "
    "its pronouns stand for in their place. You say the rewritten question and nothing else."
)
"""The system message for rewriting a question."""

CANNOT_REWRITE = (
    "The model {!r} only quotes and cannot rewrite questions: leave out rewrite (--rewrite), because follow-ups are "
    "resolved without a model, too; or choose an instruct model."
)
"""The refusal to rewrite questions with a model that only quotes."""

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
_NAME = re.compile(r"(?<!\w)--?\w|`|\w[_.]\w|[A-Z]{2}|\d")  # an option, a constant, a file: it needs no conversation
_VERB = re.compile(r"\b(is|are|was|were|do|does|did|can|could|should|must|may|mean|means)\b", re.I)
_WORD = re.compile(r"\w[\w'’.-]*")
_STEM = 5  # first letters that two forms of a word share


def is_follow_up(question: str) -> bool:
    """Return whether a question refers to the conversation: by a connective, a pronoun, or because it is very short."""
    text = _IMPERSONAL.sub("", question.strip())
    if _CONNECTIVES.match(text) or _REFERENCES.search(text):
        return True
    is_named = bool(_NAME.search(question) and _VERB.search(question))
    return len(_content_words(question)) < MIN_WORDS and not is_named


def resolve_question(question: str, history: Sequence[Message]) -> str:
    """Return a question that can be understood without the conversation, by which passages are retrieved.

    A follow-up question is preceded by the question that it refers to: the latest one that is not a follow-up itself,
    with the follow-ups after it. Any other question is returned as it is.

    Args:
        question: the question.
        history: the earlier messages of the conversation, oldest first; only those of the user are read.
    """
    return " ".join(part for part in (_referred_question(question, history), question) if part)


def with_topic(question: str, history: Sequence[Message]) -> str:
    """Return a follow-up question with the content words of the question that it refers to, in parentheses.

    Lines are scored for this text: a line that answers the earlier question is less similar to it than to the text of
    `resolve_question`. Any other question is returned as it is.

    Args:
        question: the question.
        history: the earlier messages of the conversation, oldest first; only those of the user are read.
    """
    own = {word.lower() for word in _WORD.findall(question)}
    earlier = _content_words(_referred_question(question, history))
    topic = " ".join(word for word in dict.fromkeys(earlier) if word.lower() not in own)
    return f"{question} ({topic})" if topic else question


def _referred_question(question: str, history: Sequence[Message]) -> str:
    """Return the latest question that is not a follow-up itself, or the first one; empty if none is needed."""
    earlier = [str(message.get("content") or "").strip() for message in history if message.get("role") == "user"]
    found = ""
    while is_follow_up(found or question) and earlier:
        found = earlier.pop() or found
    return found


def _content_words(text: str) -> list[str]:
    """Return the words that carry meaning, without pronouns."""
    return [word for word in _WORD.findall(_REFERENCES.sub(" ", text)) if word.lower() not in _FUNCTION_WORDS]


def continuity(history: Sequence[Message], passages: Sequence[Passage]) -> dict[str, float]:
    """Return for the id of each passage the nats by which its lines are more relevant to a follow-up question.

    Its answer is usually near the previous one: in a document or section that the latest answer quotes. Other passages
    get a penalty, so that a follow-up question without an answer is still refused.

    Args:
        history: the earlier messages, oldest first.
        passages: the retrieved passages.
    """
    answers = [str(message.get("content") or "") for message in history if message.get("role") == "assistant"]
    quoted = [passages[each.passage - 1] for each in cite(answers[-1], passages)] if answers else []
    documents = {passage.source for passage in quoted}
    sections = {(passage.source, passage.metadata.get("title")) for passage in quoted}
    penalty = RULES.follow_up_penalty if quoted else 0.0
    return {
        each.id: RULES.same_document * (each.source in documents)
        + RULES.same_section * ((each.source, each.metadata.get("title")) in sections)
        - penalty
        for each in passages
    }


def rewrite_question(language_model: TextModel, question: str, history: Sequence[Message]) -> str:
    """Rewrite a question so that it can be understood without the conversation, with a short greedy generation.

    Args:
        language_model: the language model.
        question: the question.
        history: the earlier messages, oldest first.

    Returns:
        The rewritten question; that of `resolve_question` if the model's text is not the question in other words (see
        `is_rewriting`); the original one if there is no conversation.
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
    rewritten = completion.text.strip()
    return rewritten if is_rewriting(rewritten, question, texts) else resolve_question(question, history)


def is_rewriting(text: str, question: str, conversation: Sequence[str]) -> bool:
    """Return whether a text is a question in other words: the model neither answered nor invented a subject.

    It must end like a question, have half of the question's words that are new in the conversation, and take most of
    its other words from the conversation; words with the same `_STEM` first letters count as the same.

    Args:
        text: the model's text.
        question: the question that was to be rewritten.
        conversation: the texts of the earlier messages.
    """
    earlier = set[str]().union(*map(content_stems, conversation))
    own, words = content_stems(question), content_stems(text)
    new, known = own - earlier, own | earlier
    is_question = text.endswith(("?", "？", "؟")) or not question.strip().endswith(("?", "？", "؟"))
    is_about_it = 2 * len(new & words) >= len(new) and 4 * len(words & known) >= 3 * len(words)
    return bool(words) and is_question and is_about_it


def content_stems(text: str) -> set[str]:
    """Return the first letters of the words that carry meaning, in lower case; of Chinese, pairs of characters."""
    return {word.lower()[:_STEM] for word in _content_words(keyword_text(text))}
