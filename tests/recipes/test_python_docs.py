"""The bundled documents are clean text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from antiphon.pipelines.data.demo import demo_documents


def test_the_shipped_documents_are_about_a_megabyte_with_their_licence() -> None:
    paths = demo_documents()
    assert len(paths) == 40
    assert 700_000 < sum(path.stat().st_size for path in paths) < 1_000_000
    licence = (paths[0].parent / "LICENSE.txt").read_text(encoding="utf-8")
    assert "PSF LICENSE AGREEMENT FOR PYTHON" in licence
    assert "Copyright © 2001-2023 Python Software Foundation" in licence
    assert "ZERO-CLAUSE BSD LICENSE" in licence
    assert (paths[0].parent / "README.md").is_file()


@pytest.mark.parametrize("path", demo_documents(), ids=lambda path: path.name)
def test_a_shipped_document_is_clean_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"¶|Previous topic|Table of Contents|Permalink|</\w+>\s*<div|\r|[ \t]+\n\n\n", text)
    assert found == []
    heading, blank, _ = text.split("\n", 2)
    assert 3 < len(heading) < 80
    assert blank == ""
