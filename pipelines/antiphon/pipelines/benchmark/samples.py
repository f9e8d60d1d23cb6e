"""Recorded answers: JSONL files of prompts, references and responses.

Each line is an object with ``id``, ``task``, ``query`` (the question alone), ``references`` (a list of the texts in the
prompt), ``prompt`` (the whole prompt) and ``response``. Other keys are ignored.
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
"""Sample files of the package:

- python-docs: 40 questions about the Python documentation over three passages each, answered by the reader.
- translation: translations, which have almost nothing to copy.
- genres: requests for prose, code and mathematics without references, answered by SmolLM2.
- edits: requests for code, answered by SmolLM2. Each has one reference, the code before an edit: one
  name in it is different throughout, and every eighth line is missing.
"""

TEXTS = ("id", "task", "query", "prompt", "response")


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """One recorded answer; see the module for the fields."""

    id: str
    task: str
    query: str
    references: tuple[str, ...]
    prompt: str
    response: str


def load_samples(path: str | Path, *, task: str | None = None, limit: int | None = None) -> list[RecordedSample]:
    """Load samples in file order.

    Args:
        path: A JSONL file. If there is no such file, this may be one of the names in `SHIPPED`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line is not a sample (the message has its number), or no sample remains.
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
