"""Questions: the user's text, and a complete form that can be understood without the conversation.

The complete form adds the words that a follow-up refers to, or a language model writes it (`rewrite_question`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from antiphon.accel.text.messages import Message
from antiphon.retrieval.keywords import keyword_text

if TYPE_CHECKING:
    from antiphon.accel import TextModel

_CONNECTIVES = re.compile(r"(and|but|or|so|then|also|why|why not|what about|how about|what else|anything else)\b", re.I)
_REFERENCES = re.compile(
    r"\b(it|its|itself|they|them|their|theirs|themselves|he|him|his|she|her|hers|this|these|those|instead|otherwise|else)\b"
    r"|\bthe (same|other|former|latter)\b|\b(that|there)\b(?=\s*[?.,]|$)"
    r"|\b(do|does|did|about|with|for|to|is|was) that\b",
    re.I,
)
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\S+",
        "a an the is are was were be do does did can could should would will may might must have has had i you we my "
        "your what which who whom whose when where why how of in on at to for from by with about and or but so not no "
        "if there many much long often s",
    )
)
_SMALL_TALK = frozenset(
    re.findall(
        r"\S+",
        "hello hi hey there good morning afternoon evening night thanks thank thx you very so much many a lot for your "
        "help cheers great cool nice perfect super ok okay bye goodbye danke vielen dank schön hallo guten tag merci "
        "beaucoup bonjour hola gracias muchas ciao grazie mille tack hej 谢谢 你好 ありがとう こんにちは",
    )
)
_WORD = re.compile(r"\w+(?:(?!['’]s\b)['’.-]+\w+)*")  # without a full stop and 's at its end
_COLUMNS = (
    (r"\b(?:who|whose|owns?|owned|responsible)\b", "owner responsible person contact manager lead author name"),
    (
        r"\b(?:how much|costs?|prices?|pay|paid|worth|spend|budget\w*)\b",
        "cost price amount value sum fee total budget eur",
    ),
    (r"\b(?:when|until|since|dates?)\b", "date start end renewal due deadline day until since"),
    (r"\b(?:how long|lasts?|take)\b", "duration length time running hours days period term"),
    (r"\b(?:where|located|place)\b", "location place site room city address country"),
)
_SAME_WORDS = 0.7  # minimum share of words that two questions have in common if they are the same question
_STEM = 5  # number of first letters that two forms of a word have in common


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a user, checked when it is created.

    Attributes:
        text: the question as it was asked.
        complete: the question in a form that needs no conversation, used to retrieve passages; by default ``text``.

    Raises:
        ValueError: the question is empty, or cannot be encoded as UTF-8, which tokenizers need.
    """

    text: str
    complete: str = ""

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("The question is empty; ask something.")
        try:
            self.text.encode()
        except UnicodeEncodeError as error:
            invalid = self.text[error.start : error.end].encode(errors="surrogateescape")
            raise ValueError(
                f"The question holds bytes that are not UTF-8 ({invalid!r} after {error.start} characters); type it in "
                "UTF-8, or check the encoding of your terminal."
            ) from None
        object.__setattr__(self, "complete", self.complete or self.text)

    @classmethod
    def of(cls, asked: str | Question, history: Sequence[Message] = ()) -> Question:
        """Return a question of a conversation. A follow-up question is completed with an earlier question.

        The complete form of a follow-up starts with the latest earlier question that is not a follow-up.

        Args:
            history: the earlier messages, oldest first; only the user's messages are read.
        """
        text = asked if isinstance(asked, str) else asked.text
        earlier = [str(message.get("content") or "").strip() for message in history if message.get("role") == "user"]
        referred = ""
        while is_follow_up(referred or text) and earlier:
            referred = earlier.pop() or referred
        return cls(text, f"{referred} {text}" if referred else text)

    @property
    def is_small_talk(self) -> bool:
        """Whether the text only greets or thanks."""
        return _SMALL_TALK.issuperset(re.findall(r"\w+", self.text.lower()))

    @property
    def is_follow_up(self) -> bool:
        """Whether the question can only be understood with its conversation."""
        return self.complete != self.text


def is_follow_up(question: str) -> bool:
    """Return whether a question refers to the conversation, by a connective or a pronoun."""
    return bool(_CONNECTIVES.match(question.strip()) or _REFERENCES.search(question))


def repeats_question(line: str, question: str) -> bool:
    """Return whether a line of a document is a question with nearly the same words as the user's question."""
    asked, said = content_stems(question), content_stems(line)
    return line.rstrip('*_"”’ ').endswith(("?", "？")) and len(asked & said) >= _SAME_WORDS * len(asked | said)


def column_stems(question: str) -> set[str]:
    """Return the stems of words that may be in the name of the column with the answer.

    These are the words of the question, and further words for some of them, such as "owner" for
    "who".
    """
    names = (names for pattern, names in _COLUMNS if re.search(pattern, question, re.IGNORECASE))
    return content_stems(" ".join([question, *names]))


def content_stems(text: str) -> set[str]:
    """Return the stems of the content words: the first letters of each word, in lower case.

    Chinese text has no spaces between words, so its stems are pairs of characters.
    """
    words = _WORD.findall(_REFERENCES.sub(" ", keyword_text(text)).lower())
    return {word[:_STEM] for word in words if word not in _FUNCTION_WORDS}


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
    conversation. Words are equal if their first `_STEM` letters are equal.
    """
    earlier = set[str]().union(*map(content_stems, conversation))
    own, words = content_stems(question), content_stems(text)
    new, known = own - earlier, own | earlier
    is_question = text.endswith(("?", "？", "؟")) or not question.strip().endswith(("?", "？", "؟"))
    is_about_it = 2 * len(new & words) >= len(new) and 4 * len(words & known) >= 3 * len(words)
    return bool(words) and is_question and is_about_it
