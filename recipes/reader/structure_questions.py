"""Generates questions that headings, lists, tables and code answer, by rules.

Unlike in `rule_questions`, the question also depends on the position of the line in the passage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from random import Random

from antiphon.pipelines.quotes import Quote, lines_of, quotable_lines
from antiphon.retrieval import Passage
from antiphon.retrieval.block import Block, BlockKind
from antiphon.retrieval.formats import markup_of
from antiphon.retrieval.segmentation import blocks
from recipes.reader.rule_questions import PassageQuestion, quotable
from recipes.reader.typing_noise import add_typing_noise

STRUCTURED = frozenset({"code", "comment", "row", "item", "faq"})
"""Kinds of questions whose answers are not sentences of a paragraph."""

_MOST_LINES = 4
"""Maximum number of lines of code, or list items, in an answer."""

Made = tuple[str, tuple[str, ...], str]
"""A question, the lines that answer it, and its kind."""


def structure_questions(passage: Passage, random: Random) -> list[PassageQuestion]:
    """Generate questions about a passage's headings, code, tables and lists, with typing noise.

    Args:
        passage: The passage.
        random: Random numbers.
    """
    found = [*_of_blocks(passage, random), *_of_items(passage, random), *_of_heading(passage, random)]
    quotable_ones = _quotable(passage)
    return [
        PassageQuestion(add_typing_noise(question, random), lines, kind)
        for question, lines, kind in found
        if lines and len(question) < 140 and quotable_ones.issuperset(lines)
    ]


def _quotable(passage: Passage) -> set[str]:
    return {line.sentence for line in quotable_lines([passage])[0]}


def _lines(passage: Passage, block: Block) -> list[Quote]:
    text = passage.text[block.start : block.end]
    return lines_of([Passage.at(passage.source, 0, text)])[0]


def _of_blocks(passage: Passage, random: Random) -> Iterator[Made]:
    lead = ""
    for block in blocks(passage.text, markup=markup_of(passage.source)):
        lines = _lines(passage, block)
        if block.kind is BlockKind.TEXT:
            lead = str(getattr(lines[-1], "sentence", lines[-1])) if lines else lead
        elif block.kind is BlockKind.CODE:
            yield from _of_code(_topic(passage), lead, [line.sentence for line in lines if line.is_quotable], random)
            lead = ""
        else:
            columns = lines[0].sentence if lines and not lines[0].is_quotable else ""
            yield from _of_table(columns, [line.sentence for line in lines if line.is_quotable], random)


# Verbs of headings and introductions that say what the following code does

_VERBS = (
    "add", "build", "call", "change", "check", "choose", "clear", "close", "compile", "configure", "connect",
    "control", "convert", "create", "customize", "debug", "define", "delete", "deploy", "disable", "enable",
    "export", "extend", "filter", "find", "fix", "format", "get", "handle", "ignore", "import", "include",
    "inspect", "install", "intercept", "limit", "listen", "load", "log", "make", "manage", "mock", "override",
    "pass", "print", "profile", "publish", "read", "receive", "register", "remove", "render", "replace", "report",
    "restart", "return", "run", "save", "send", "serve", "set", "share", "specify", "start", "stop", "stream",
    "switch", "test", "throw", "trace", "turn", "update", "upgrade", "use", "validate", "verify", "wait", "wrap",
    "write",
)  # fmt: skip
_GERUNDS = {verb.removesuffix("e") + "ing": verb for verb in _VERBS} | {
    "getting": "get", "setting": "set", "running": "run", "stopping": "stop", "logging": "log", "wrapping": "wrap",
    "controlling": "control", "debugging": "debug", "specifying": "specify", "using": "use", "putting": "put",
}  # fmt: skip
_TO = re.compile(
    r"^(?:(?:In order to|To) ([a-z][^,:]{4,70})(?:[,:]|$)|(?:.*\b)?(?:[Yy]ou can|lets you|allows you to|"
    r"[Yy]ou may|want to|possible to|used to) ([a-z][^,:.]{4,70}?)(?: with| by| via| as follows| like this)?[:,.])"
)

_DANGLING = re.compile(r"\b(this|that|it|them|these|those)$")


def _doing(words: str) -> str:
    """Return the action that a phrase names, as an infinitive after "How do I"; empty if it names none."""
    first, _, rest = words.strip(" :.`").partition(" ")
    verb = _GERUNDS.get(first.lower(), first.lower() if first.lower() in _VERBS else "")
    is_clear = bool(rest) and not rest.startswith("`") and not _DANGLING.search(rest)
    return f"{verb} {rest}" if verb and is_clear else ""


def _topic(passage: Passage) -> list[str]:
    """Return the headings above a passage if it starts with the innermost one; otherwise none."""
    titles = passage.metadata.get("title", "")
    if titles.rpartition(" > ")[2] not in passage.text.partition("\n")[0]:
        return []
    return [title.replace("`", "").strip() for title in titles.split(" > ") if title]


def _how(doing: str, random: Random) -> str:
    return random.choice(("How do I {}?", "How can I {}?", "how to {}", "What do I write to {}?")).format(doing)


def _of_code(topic: list[str], lead: str, code: list[str], random: Random) -> Iterator[Made]:
    yield from _of_comments(code, random)
    if not 1 <= len(code) <= _MOST_LINES:
        return
    promised = _TO.match(lead) if lead.endswith(":") else None
    doing = (promised[1] or promised[2]) if promised else _doing(lead) if lead.endswith(":") else ""
    if not doing and topic:
        doing = _doing(topic[-1])
    if doing:
        yield _how(doing.rstrip(" :."), random), tuple(code), "code"
    elif len(topic) > 1 and topic[-1].lower() in {"install", "installation"}:
        yield random.choice((f"How do I install {topic[0]}?", f"install {topic[0]}")), tuple(code), "code"
    elif topic and len(topic[-1].split()) > 1 and not topic[-1].endswith("?"):
        yield random.choice((f"example of {topic[-1]}", f"{topic[-1]} example")), tuple(code), "code"


_COMMENT = re.compile(r"^(?://|#)\s*(\w[\w ,'-]{8,60})$")


def _of_comments(code: list[str], random: Random) -> Iterator[Made]:
    for comment, line in pairwise(code):
        match = _COMMENT.match(comment)
        if match and (doing := _doing(match[1])) and not _COMMENT.match(line):
            yield _how(doing, random), (line,), "comment"


_THIRD = re.compile(r"^(\w+?)(?:s|es) (.{6,70}?)[.;,(]?$")


def _which(what: str, says: str) -> str:
    """Return a question about an item with a description such as "Sets the port"; empty for any other description."""
    says = says.strip(" .")
    match = _THIRD.match(says.split(". ")[0])
    if match and match[1].lower() in _VERBS:
        return f"Which {what} {says.split('. ')[0][0].lower()}{says.split('. ')[0][1:]}?"
    if (doing := _doing(says.split(". ")[0])) and len(doing) < 80:
        return f"Which {what} do I need to {doing}?"
    return ""


def _of_table(columns: str, rows: list[str], random: Random) -> Iterator[Made]:
    names = [name.strip() for name in columns.split("|")]
    what = names[0].lower().rstrip("s") if names[0].isalpha() else "one"
    for row in random.sample(rows, min(3, len(rows))):
        cells = [cell.strip() for cell in row.split(" | ")]
        thing = cells[0].strip("`* ")
        if len(cells) < 2 or not thing or len(thing) > 40:
            continue
        asked = [f"What is {thing}?", f"What does {thing} do?"]
        if len(names) == len(cells):
            at = random.randrange(1, len(cells))
            asked += [f"What is the {names[at].lower()} of {thing}?"] * 2 if names[at] and cells[at] else []
        if which := _which(what, cells[-1]):
            asked += [which] * 2
        yield random.choice(asked), (row,), "row"


_ENTRY = re.compile(r"^[`*_]+([^`*]{2,40}?)[`*_:]+(?:\s*(?:\([^)]*\)|<[^>]*>|\{[^}]*\}))?\s*[:–—-]?\s+(\S.*)$")
_OPTION = re.compile(r"\b(?:[Dd]efaults? (?:to|is|value)|[Dd]efault:)")


def _of_items(passage: Passage, random: Random) -> Iterator[Made]:
    for line in quotable_lines([passage])[0]:
        match = _ENTRY.match(line.sentence)
        if not match:
            continue
        thing, says = match[1].strip(), match[2].strip("` *")
        asked = [f"What does {thing} do?", f"What is {thing}?", f"{thing} meaning"]
        if _OPTION.search(says):
            asked += [f"What is the default of {thing}?", f"default {thing}"]
        if which := _which(random.choice(("option", "one", "setting")), says):
            asked += [which] * 3
        yield random.choice(asked), (line.sentence,), "item"


_VAGUE = {"usage", "example", "examples", "options", "introduction", "overview", "notes", "note", "api", "license"}


def _of_heading(passage: Passage, random: Random) -> Iterator[Made]:
    """Yield a question that the heading asks and the first sentence of the section answers."""
    topic = _topic(passage)
    first = next(iter(quotable_lines([passage])[0]), None)
    if not topic or first is None or topic[-1].lower() in _VAGUE or not quotable(first.sentence):
        return
    title = topic[-1]
    if title.endswith("?"):
        yield title, (first.sentence,), "faq"
    elif doing := _doing(title):
        yield _how(doing, random), (first.sentence,), "heading"
    elif len(title.split()) <= 4:
        asked = [f"What is {title}?", f"What is {title} for?"] + ([title.lower()] if " " in title else [])
        yield random.choice(asked), (first.sentence,), "heading"
