"""Recorded answers: what a model was asked, what it had to read, what it answered. Knows nothing of tokens.

A file of them is JSONL, one object a line: ``id``, ``task``, ``query`` (the question by itself), ``references`` (a list
of the texts that the model was given to read), ``prompt`` (the whole text that it was given), ``response`` (what it
said); other keys are passed over.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SHIPPED = {
    "python-docs": Path(__file__).parents[1] / "data" / "python-docs" / "answers.jsonl",
    "translation": Path(__file__).parents[1] / "data" / "translation.jsonl",
    "genres": Path(__file__).parents[1] / "data" / "genres.jsonl",
    "edits": Path(__file__).parents[1] / "data" / "edits.jsonl",
}
"""Samples that ship with the package: forty questions about the Python documentation, asked over three passages each
and answered by the reader; translations, in which there is next to nothing to copy; and requests for prose, code and
mathematics without anything to read, answered by SmolLM2; and requests for code, answered by it too, whose one
reference is the code as it was before an edit: with one name called otherwise throughout, and every eighth line
missing."""

TEXTS = ("id", "task", "query", "prompt", "response")


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """One recorded answer. ``prompt`` is the whole text that the model was given."""

    id: str
    task: str
    query: str
    references: tuple[str, ...]
    prompt: str
    response: str


def load_samples(path: str | Path, *, task: str | None = None, limit: int | None = None) -> list[RecordedSample]:
    """The samples of a JSONL file in their order: those of one ``task`` if it is given, at most ``limit`` of them.

    One of `SHIPPED` is found by its name, unless there is a file of that name.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not a sample (it is named by its number), or no sample is left.
    """
    path = Path(path)
    path = path if path.is_file() else SHIPPED.get(str(path), path)
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no file {path}; give a JSONL file of recorded answers, or {' or '.join(SHIPPED)}."
        )
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; a replay needs at least 1 sample.")
    samples: list[RecordedSample] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                samples.append(_parse(line, f"{path}, line {number}"))
    chosen = [sample for sample in samples if task is None or sample.task == task][:limit]
    if not chosen:
        tasks = ", ".join(sorted({sample.task for sample in samples})) or "none"
        raise ValueError(f"{path} has no samples{f' of task {task!r}' if task else ''}; the tasks in it: {tasks}.")
    return chosen


def _parse(line: str, where: str) -> RecordedSample:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}.") from error
    keys = row.keys() if isinstance(row, dict) else ()
    if missing := [key for key in (*TEXTS, "references") if key not in keys]:
        raise ValueError(f"{where} has no {', '.join(missing)}; a sample needs {', '.join(TEXTS)} and references.")
    if wrong := [key for key in TEXTS if not isinstance(row[key], str)]:
        raise ValueError(f"{where}: {', '.join(wrong)} needs to be text.")
    references = row["references"]
    if not (isinstance(references, list) and all(isinstance(reference, str) for reference in references)):
        raise ValueError(f"{where}: references needs to be a list of texts.")
    return RecordedSample(references=tuple(references), **{key: row[key] for key in TEXTS})
