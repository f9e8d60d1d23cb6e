"""Collections with keys for a server under load."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.pipelines.server.key_file import key_digest
from antiphon.retrieval import HashEmbedder, Passage, index_passages
from tests.load.clients import Target
from tests.load.questions import Question


@dataclass(frozen=True, slots=True)
class ServedCollections:
    """The indexes of a server, with one key for each.

    Attributes:
        indexes: the folders; clients upload to the first one.
        keys: the key that may change the collection at the same place; empty: no key is needed.
        options: the options of `antiphon serve`.
    """

    indexes: tuple[Path, ...]
    keys: tuple[str, ...]
    options: tuple[str, ...]

    def target(self, target: Target) -> Target:
        """Return a target whose requests use these keys in turns."""
        return replace(target, keys=self.keys)


def make_collections(folder: Path, questions: Sequence[Question], count: int) -> ServedCollections:
    """Index passages of the questions, each passage in one collection.

    Args:
        folder: where to write.
        questions: the questions.
        count: the number of collections; 0: one index without keys.
    """
    texts = [text for question in questions[:20] for text in question.passages]
    passages = [Passage.at(f"{n}.txt", 0, text) for n, text in enumerate(texts)]
    indexes = tuple(folder / f"index{number}" for number in range(max(1, count)))
    for number, index in enumerate(indexes):
        index_passages(passages[number :: len(indexes)], index, HashEmbedder())
    if not count:
        return ServedCollections(indexes, (), ("--index", str(indexes[0])))
    keys, lines = tuple(secrets.token_urlsafe(32) for _ in indexes), list[str]()
    for index, key in zip(indexes, keys, strict=True):
        lines += [f"[collections.{index.name}]", f'index = "{index}"']
        lines += [f"[keys.{index.name}]", f'sha256 = "{key_digest(key)}"', f'write = ["{index.name}"]']
    file = folder / "collections.toml"
    file.write_text("\n".join(lines), encoding="utf-8")
    return ServedCollections(indexes, keys, ("--collections", str(file)))
