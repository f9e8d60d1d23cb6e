"""Rewrites follow-up questions with the model, so that they can be understood without the conversation."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.accel import TextModel
from antiphon.accel.text.messages import Message
from antiphon.pipelines.question import Question, content_stems

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


def rewrite_question(language_model: TextModel, question: Question, history: Sequence[Message]) -> Question:
    """Rewrite a question so that it can be understood without the conversation, with a short greedy generation.

    Returns:
        The rewritten question. The given question is returned if there is no conversation, or if
        the model's text is not a rewriting (see `is_rewriting`).
    """
    names = {"user": "Question", "assistant": "Answer"}
    shown = [message for message in history if message.get("role") in names][-REWRITE_MESSAGES:]
    if not shown:
        return question
    texts = [str(message.get("content") or "") for message in shown]
    lines = "\n".join(f"{names[message['role']]}: {text}" for message, text in zip(shown, texts, strict=True))
    content = f"{lines}\n\nLast question: {question.text}\n\nRewritten question:"
    messages = ({"role": "system", "content": REWRITE}, {"role": "user", "content": content})
    completion = language_model.generate(
        messages, references=[question.text, *texts], max_new_tokens=QUESTION_TOKENS, stop="\n", thinking=False
    )
    rewritten = completion.text.strip()
    return Question(question.text, rewritten) if is_rewriting(rewritten, question.text, texts) else question


def is_rewriting(text: str, question: str, conversation: Sequence[str]) -> bool:
    """Return whether a text rephrases a question, and neither answers it nor introduces a new subject.

    The text must end like a question. It must contain at least half of the words that the question
    adds to the conversation. At least three quarters of its words must occur in the question or the
    conversation. Words are equal if their first `_STEM` letters are.
    """
    earlier = set[str]().union(*map(content_stems, conversation))
    own, words = content_stems(question), content_stems(text)
    new, known = own - earlier, own | earlier
    is_question = text.endswith(("?", "？", "؟")) or not question.strip().endswith(("?", "？", "؟"))
    is_about_it = 2 * len(new & words) >= len(new) and 4 * len(words & known) >= 3 * len(words)
    return bool(words) and is_question and is_about_it
