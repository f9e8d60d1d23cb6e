"""Generates questions from single sentences of a passage by rules of English grammar.

Every rule yields questions that the sentence answers. Sentences that match no rule yield none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from antiphon.pipelines.quotes import quoted_form
from antiphon.retrieval.segmentation import sentences
from recipes.reader.typing_noise import add_typing_noise


@dataclass(frozen=True, slots=True)
class PassageQuestion:
    """A question with the sentences of one passage that answer it, verbatim."""

    text: str
    sentences: tuple[str, ...]
    kind: str


Rule = Callable[[str], Iterator[tuple[str, str]]]
"""A sentence to (kind, question) pairs."""

_FEWEST_WORDS, _MOST_WORDS = 5, 60
_CODE = re.compile(r"^(>>>|\.\.\.|#|\$|[\w.]+ = )|[{};]$|--{2,}|\|")
_LISTING = re.compile(r"\n[ \t>|$#]")  # an indented line inside a sentence, or one that begins like code
_DANGLING = re.compile(
    r"^(this|that|these|those|it|its|they|their|he|she|here|such|see|note|for (example|instance|more)|however|also|"
    r"otherwise|then|thus|therefore|but|and|or|so|in (this|that|these|those|such)|changed in|new in|deprecated|"
    r"added in|contributed|availability|source code|prev\b|next\b)\b",
    re.IGNORECASE,
)
_FOLLOWS = re.compile(r"^(this|it|these|they|otherwise|however|for example|in this case)\b", re.IGNORECASE)


def quotable(sentence: str) -> bool:
    """Return whether a sentence can be an answer: complete prose, not a heading, a listing or a list's introduction."""
    line = quoted_form(sentence)
    return (
        _FEWEST_WORDS <= len(line.split()) <= _MOST_WORDS
        and line[-1] in ".)!"
        and "Contributed by" not in line
        and not _CODE.search(line)
        and not _LISTING.search(sentence)
    )


def sentence_questions(text: str, random: Random) -> list[PassageQuestion]:
    """Generate questions about a passage, at most two per sentence and one per list.

    Args:
        text: Text of the passage.
        random: Random numbers.
    """
    found = [text[start:end] for start, end in sentences(text)]
    asked = list(_about_lists(found, random))
    for position, whole in enumerate(found):
        sentence = quoted_form(whole)
        if not quotable(whole) or _DANGLING.match(sentence):
            continue
        made = [pair for rule in RULES for pair in rule(sentence)]
        random.shuffle(made)
        answer = _with_what_follows(sentence, found[position + 1 :], random)
        asked.extend(PassageQuestion(add_typing_noise(question, random), answer, kind) for kind, question in made[:2])
    return asked


def _with_what_follows(sentence: str, rest: list[str], random: Random) -> tuple[str, ...]:
    """Return the sentence, and sometimes the next one if that continues it."""
    if rest and quotable(rest[0]) and _FOLLOWS.match(rest[0]) and random.random() < 0.3:
        return (sentence, quoted_form(rest[0]))
    return (sentence,)


def _about_lists(found: list[str], random: Random) -> Iterator[PassageQuestion]:
    for position, lead in enumerate(found):
        if not lead.endswith(":") or not 4 <= len(lead.split()) <= 25 or "\n" in lead:
            continue
        items = []
        for item in found[position + 1 :]:
            if quoted_form(item) == item or "\n" in item or len(item.split()) > _MOST_WORDS:
                break
            items.append(quoted_form(item))
        if 2 <= len(items) <= 3:
            yield PassageQuestion(add_typing_noise(_lower_first(lead[:-1]) + "?", random), tuple(items), "list")


# Rules: each takes a whole sentence.

_SIGNATURE = re.compile(r"^((?:class |classmethod |exception |coroutine |async )?([\w.]*\w)(?:\([^)]*\))?): (\w+)( .+)")
_NOT_NAMES = {"note", "warning", "example", "tip", "caution", "important", "hint", "default", "footnote", "see"}
_VERBS = {
    "return": "get", "create": "create", "set": "set", "get": "get", "remove": "remove", "delete": "delete",
    "convert": "convert", "open": "open", "close": "close", "read": "read", "write": "write", "copy": "copy",
    "add": "add", "check": "check", "test": "test", "parse": "parse", "compute": "compute", "print": "print",
    "run": "run", "start": "start", "stop": "stop", "send": "send", "load": "load", "change": "change",
    "register": "register", "find": "find", "call": "call", "split": "split", "join": "join", "list": "list",
    "wait": "wait", "encode": "encode", "decode": "decode", "insert": "insert", "search": "search",
    "determine": "find out", "retrieve": "get", "acquire": "acquire", "release": "release", "format": "format",
    "raise": "raise", "compile": "compile", "execute": "execute", "dump": "dump", "update": "update",
}  # fmt: skip


def _signature(sentence: str) -> Iterator[tuple[str, str]]:
    if not (match := _SIGNATURE.match(sentence)) or match[2].lower() in _NOT_NAMES:
        return
    name, verb, rest = match[2], match[3].lower(), match[4].rstrip(".").partition(". ")[0]
    yield "does", f"What does {name} do?"
    yield "does", f"What is {name} for?"
    if (plain := verb.removesuffix("s")) in _VERBS and len(rest.split()) <= 16:
        yield "how", f"How do I {_VERBS[plain]}{rest}?"
        yield "which", f"Which function can {plain}{rest}?"


_IS = re.compile(
    r"^(?:(?:A|An|The) )?((?:[\w\-'./]+ ){0,4}?[\w\-'./()]+) (is|are) "
    r"(?=(?:a|an|the|used|one|any|called|like|simply)\b)"
)
_PRONOUN = re.compile(
    r"\b(there|it|this|that|which|what|one|you|we|they|these|those|result|value|following|if|in|when)\b", re.IGNORECASE
)


def _definition(sentence: str) -> Iterator[tuple[str, str]]:
    match = _IS.match(sentence)
    if match and not _PRONOUN.search(match[1]):
        thing, verb = match[1], match[2]
        yield "what", f"What {verb} {_article(sentence, thing)}?"
        yield "what", f"{_lower_first(thing)} meaning"
        yield "what", f"Can you explain what {_article(sentence, thing)} {verb}?"


def _article(sentence: str, thing: str) -> str:
    first = sentence.split(" ", 1)[0]
    return f"{first.lower()} {thing}" if first in {"A", "An", "The"} else thing


_IF = re.compile(r"^(If|When|Unless|Whenever) ([^,:]{8,110}), (?:then )?(.{8,})$")
_IF_LATER = re.compile(r"^([A-Z][^,:]{15,90}) (if|when|unless) ([^,:()]{8,90})\.$")


def _condition(sentence: str) -> Iterator[tuple[str, str]]:
    if (match := _IF.match(sentence)) and not _backward(match[2]):
        word = match[1].lower()
        yield "if", f"What happens {word} {match[2]}?"
        yield "if", f"what {word} {match[2]}"
    elif (match := _IF_LATER.match(sentence)) and not _backward(match[3]):
        yield "if", f"What happens {match[2]} {match[3]}?"
        if match[2] != "unless":
            yield "if", f"What do I get {match[2]} {match[3]}?"


def _backward(phrase: str) -> bool:
    return bool(re.match(r"(this|it|they|that|these|so|not|you want|you do)\b", phrase, re.IGNORECASE))


_MODAL = re.compile(
    r"^((?:[\w\-'./()]+ ){1,6})(can|must|should|may|will|cannot|need not) (not )?(be )?([^,;:]{8,90})[.,;]"
)


def _modal(sentence: str) -> Iterator[tuple[str, str]]:
    match = _MODAL.match(sentence)
    if match and not _PRONOUN.search(match[1]):
        subject = _lower_first(match[1].strip())
        verb = "can" if match[2] in {"cannot", "may"} else "must" if match[2] == "need not" else match[2]
        yield "can", f"{verb.capitalize()} {subject} {match[4] or ''}{match[5]}?"


_PURPOSE = re.compile(r"^(?:In order to|To) ([a-z][^,:]{8,90}), ")
_USE = re.compile(
    r"\b(?:used|useful|possible|necessary|want|way|allows? \w+|lets you|try|able) to ([a-z][^,.;:]{10,80})"
)


def _purpose(sentence: str) -> Iterator[tuple[str, str]]:
    match = _PURPOSE.match(sentence) or _USE.search(sentence)
    if match and not re.search(r"\b(this|it|that|these|them|be|do so)\b", match[1]):
        yield "how", f"How do I {match[1]}?"
        yield "how", f"how to {match[1]}"
        yield "how", f"How can I {match[1]}?"
        yield "how", f"Is there a way to {match[1]}?"


_DOES = re.compile(
    r"^((?:[\w\-'./()]+ ){1,5}?)(returns?|means?|contains?|specif(?:y|ies)|provides?|supports?|requires?|accepts?|"
    r"creates?|raises?|controls?|represents?|includes?|determines?|takes?|stores?|causes?|indicates?|defines?) (.{8,})$"
)
_BASE = {"specifies": "specify", "specify": "specify"}


def _does(sentence: str) -> Iterator[tuple[str, str]]:
    match = _DOES.match(sentence)
    if not match or _PRONOUN.search(match[1]):
        return
    subject, verb = _lower_first(match[1].strip()), match[2]
    plain = _BASE.get(verb, verb.removesuffix("s"))
    yield "does", f"What {'does' if verb != plain else 'do'} {subject} {plain}?"


_BECAUSE = re.compile(r"^([^,;:]{12,100}),? (?:because|since) (?!version)(.{8,})$")


def _reason(sentence: str) -> Iterator[tuple[str, str]]:
    match = _BECAUSE.match(sentence)
    if match and not _PRONOUN.match(match[1]):
        yield "why", f"why {_lower_first(match[1])}?"
        yield "why", f"What is the reason that {_lower_first(match[1])}?"


_RAISED = re.compile(
    r"\b(?:raises?|raise an?|an?) (?:an? )?(\w+(?:Error|Exception|Warning))\b.*?\b(?:if|when) (.{8,90}?)[.,;]"
)


def _raised(sentence: str) -> Iterator[tuple[str, str]]:
    if match := _RAISED.search(sentence):
        yield "raises", f"When is {match[1]} raised?"
        yield "raises", f"Which exception is raised if {match[2]}?"
        yield "raises", f"why do I get {match[1]}"


_DEFAULT = re.compile(r"\b([a-z][\w]*_[\w]+|[\w.]+\(\)|[a-z]+) (?:defaults to|is (?:\w+ )?by default)\b")


def _default(sentence: str) -> Iterator[tuple[str, str]]:
    match = _DEFAULT.search(sentence)
    if match and not _PRONOUN.match(match[1]):
        yield "default", f"What is the default of {match[1]}?"
        yield "default", f"{match[1]} default"


_WORD = re.compile(r"[\w.\-]*\w")
_COMMON = frozenset(
    {
        "that",
        "this",
        "with",
        "from",
        "when",
        "which",
        "will",
        "must",
        "should",
        "have",
        "used",
        "using",
        "their",
        "also",
        "only",
        "such",
        "than",
        "then",
        "other",
        "does",
    }
)


def _keywords(sentence: str) -> Iterator[tuple[str, str]]:
    words = [word for word in _WORD.findall(sentence) if word.lower() not in _COMMON and len(word) > 3]
    words = list(dict.fromkeys(words))
    if len(words) >= 6:
        chosen = sorted(sorted(words, key=len, reverse=True)[:4], key=words.index)
        yield "keywords", " ".join(chosen)


RULES: tuple[Rule, ...] = (
    _signature, _definition, _condition, _modal, _purpose, _does, _reason, _raised, _default, _keywords,
)  # fmt: skip


def _lower_first(text: str) -> str:
    """Lower-case the first letter unless the word is a name: capitals only, or with a capital, dot or sign inside."""
    first = text.split(" ", 1)[0]
    return text[:1].lower() + text[1:] if (first[1:].isalpha() and first[1:].islower()) or len(first) == 1 else text
