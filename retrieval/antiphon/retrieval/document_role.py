"""Use the names of documents in search: as keywords, and to distinguish records from manuals."""

from __future__ import annotations

import re
from collections.abc import Sequence

from antiphon.retrieval.keywords import exact_tokens, has_token, keyword_terms, keyword_text
from antiphon.retrieval.passage import DOCUMENT_TITLE, TRAIL, Passage

_NAME_PARTS = re.compile(r"[^\W_]+")
_USUAL_NAMES = frozenset(
    re.findall(
        "[a-z]+",
        "content contents default doc docs document documents en guide htm html index latest main man manual md page "
        "pages pdf readme rst share src stable text txt usr",
    )
)
_RECORD_NAMES = re.compile(
    r"(?:change[-_ ]?s?(?:[-_ ]?logs?)?|(?-i:HISTORY|NEWS)|(?:release|version)[-_ ]?(?:notes?|history)|releases|"
    r"what[\W_]?s[-_ ]?new|issues?|bugs?|todo|(?:known|open)[-_ ](?:bugs|issues)|"
    r"tests?|test[-_ ]?(?:cases|plan|results))(?:[-_ .]?(?:v?\d[\w.]*+|md|rst|txt|debian|html))*+",
    re.IGNORECASE,
)
_ASKS_ABOUT_CHANGES = re.compile(
    r"\d+\.\d+|\b(?:add(?:ed|s)?|bugs?|chang(?:e|ed|es|elog)|deprecated|dropped|fix(?:ed|es)?|histor(?:y|ical)|"
    r"introduced|issues?|latest|new(?:est)?|news|regressions?|releas(?:e|ed|es)|removed|renamed|since|tests?|tested|"
    r"upgrad(?:e|ed|ing)|versions?)\b",
    re.IGNORECASE,
)


def name_words(source: str) -> str:
    """Return the words in the names of a file and its folder, without extensions and names such as ``docs``."""
    *folders, name = source.replace("\\", "/").split("/")
    stem = name.rpartition(".")[0] or name
    words = [word for part in (*folders[-1:], stem) for word in _NAME_PARTS.findall(part)]
    return " ".join(dict.fromkeys(word for word in words if word.lower() not in _USUAL_NAMES and not word.isdigit()))


def keyword_fields(passage: Passage) -> tuple[str, str, str]:
    """Return three texts for keyword search: headings, text with column names, and other names.

    The third text has the words of the document's title, file name and folder name that the first
    two texts do not contain.
    """
    title, text = str(passage.metadata.get("title") or ""), f"{passage.column_names}\n{passage.text}"
    known = {term.rstrip("s") for term in keyword_terms(f"{title}\n{text}")}
    names = keyword_terms(f"{passage.metadata.get(DOCUMENT_TITLE) or ''} {name_words(passage.source)}")
    return keyword_text(title), keyword_text(text), " ".join(name for name in names if name.rstrip("s") not in known)


def is_record(passage: Passage) -> bool:
    """Return whether a passage is from a record: a changelog, release notes, issues or tests.

    The decision depends on the names of its file and folder, and on its outermost heading.
    """
    *folders, name = passage.source.replace("\\", "/").split("/")
    heading = str(passage.metadata.get("title") or "").partition(TRAIL)[0]
    names = (name.rpartition(".")[0] or name, name, heading.strip("#:* "), *folders[-1:])
    return any(_RECORD_NAMES.fullmatch(each) for each in names) or name.startswith("test_")


def asks_about_changes(question: str) -> bool:
    """Return whether a question may be about changes, versions, issues or tests, the subjects of records."""
    return bool(_ASKS_ABOUT_CHANGES.search(question))


def exact_tokens_first(question: str, ranked: Sequence[Passage]) -> list[Passage]:
    """Sort passages by how many exact tokens of the question they contain.

    Exact tokens are versions, options and names in code. A token in the text counts twice as much
    as a token that is only in the headings or in the file's name. Passages with equal counts keep
    their order.

    Args:
        ranked: The passages, best first.
    """
    tokens = exact_tokens(question)

    def missing(passage: Passage) -> int:
        text, above = passage.text.lower(), f"{passage.source}\n{passage.text_with_headings}".lower()
        return sum(0 if has_token(text, each) else 1 if has_token(above, each) else 2 for each in tokens)

    return sorted(ranked, key=missing) if tokens else list(ranked)


def records_last(question: str, ranked: Sequence[Passage], k: int) -> list[Passage]:
    """Reorder a ranking: at most half of the first ``k`` passages are records, and these come last.

    If there are too few other passages, more than half are records. If the question may be about
    changes, the ranking is unchanged.

    Args:
        ranked: The passages, best first.
    """
    if asks_about_changes(question):
        return list(ranked)
    records = [each for each in ranked if is_record(each)]
    manuals = [each for each in ranked if not is_record(each)]
    first = [each for each in ranked[:k] if is_record(each)][: max(k // 2, k - len(manuals))]
    chosen = manuals[: k - len(first)]
    return [*chosen, *first, *manuals[len(chosen) :], *(each for each in records if each not in first)]
