"""Adds typing noise to questions: synonyms, lower case, a missing question mark, a typing error."""

from __future__ import annotations

from random import Random

_SYNONYMS = {
    "create": "make", "remove": "delete", "delete": "remove", "obtain": "get", "specify": "give", "retrieve": "get",
    "function": "call", "parameter": "argument", "argument": "parameter", "raised": "thrown", "exception": "error",
    "directory": "folder", "folder": "directory", "string": "text", "execute": "run", "invoke": "call",
    "modify": "change", "contain": "hold", "return": "give back", "provide": "offer", "multiple": "several",
    "permitted": "allowed", "occurs": "happens", "allow": "let", "construct": "build", "initialize": "set up",
    "terminate": "end", "row": "record", "rows": "records", "currently": "now", "automatically": "by itself",
}  # fmt: skip


def add_typing_noise(question: str, random: Random) -> str:
    """Return the question with random typing noise; about one in three is unchanged.

    Args:
        question: The question.
        random: Random numbers.
    """
    if random.random() < 0.3:
        question = " ".join(_SYNONYMS.get(word, word) for word in question.split(" "))
    if random.random() < 0.3:
        question = question.lower()
    if random.random() < 0.25:
        question = question.removesuffix("?")
    if random.random() < 0.12:
        question = _misspelt(question, random)
    return question


def _misspelt(question: str, random: Random) -> str:
    words = question.split(" ")
    long = [position for position, word in enumerate(words) if len(word) > 4 and word.isalpha()]
    if not long:
        return question
    position = random.choice(long)
    word = words[position]
    at = random.randrange(1, len(word) - 1)
    words[position] = random.choice(
        [
            word[:at] + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
            word[:at] + word[at] + word[at:],
        ]
    )
    return " ".join(words)
