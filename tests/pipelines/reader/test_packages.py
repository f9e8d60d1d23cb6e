"""The corpus of lessons: which pages of a package are written, and in which form."""

from __future__ import annotations

import gzip
import os
import tarfile
from pathlib import Path

import pytest

from antiphon.pipelines.training.reader.markdown_docs import fetch_markdown
from antiphon.pipelines.training.reader.packages import Documentation, write_pages

SPHINX = '<html><body><div role="main"><h1>Wax</h1><p>Wax melts at 64 degrees.</p></div></body></html>'


def _tree(tmp_path: Path) -> Path:
    folder = tmp_path / "doc" / "bees" / "html"
    (folder / "howto").mkdir(parents=True)
    (folder / "dance.md.gz").write_bytes(gzip.compress(b"# Dance\n\nBees dance.\n"))
    (folder / "changelog.md").write_text("Version 2", encoding="utf-8")
    (folder / "howto" / "wax.html").write_text(SPHINX, encoding="utf-8")
    (folder / "howto" / "style.css").write_text("p {}", encoding="utf-8")
    return tmp_path / "doc"


def test_pages_are_unpacked_and_named_by_their_place_and_others_are_left_out(tmp_path: Path) -> None:
    chosen = Documentation("bees-doc", "bees/html", ["*.md*", "howto/*.html", "**/*.html"], "change")
    target = tmp_path / "out" / "bees"
    target.mkdir(parents=True)
    (target / "old.md").write_text("It is gone now.", encoding="utf-8")
    assert write_pages(chosen, _tree(tmp_path), target) == 2
    found = {page.name: page.read_text(encoding="utf-8") for page in target.iterdir()}
    assert found == {"dance.md": "# Dance\n\nBees dance.\n", "howto-wax.html": SPHINX}


def test_of_a_page_made_by_sphinx_the_text_is_written(tmp_path: Path) -> None:
    chosen = Documentation("bees-doc", "bees/html", ["howto/*.html"], is_sphinx=True)
    assert write_pages(chosen, _tree(tmp_path), tmp_path / "out") == 1
    text = (tmp_path / "out" / "howto-wax.txt").read_text(encoding="utf-8")
    assert "Wax melts at 64 degrees." in text
    assert "<" not in text


def test_pages_of_npm_packages_are_named_by_package_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`npm` is a program that packs what lies beside it: the registry is not asked."""
    folder = tmp_path / "package" / "docs"
    folder.mkdir(parents=True)
    (folder / "dance.md").write_text("# Dance", encoding="utf-8")
    (folder / "CHANGELOG.md").write_text("2.0.0", encoding="utf-8")
    with tarfile.open(tmp_path / "packed.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\ncp "{tmp_path / "packed.tgz"}" "$4"\n', encoding="utf-8")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}{os.pathsep}{os.environ['PATH']}")
    assert fetch_markdown(["bees@1.0.0", "@hive/bees@2.0.0"], tmp_path / "out") == 2
    names = {page.name for page in (tmp_path / "out").iterdir()}
    assert names == {"bees-docs-dance.md", "hive-bees-docs-dance.md"}
