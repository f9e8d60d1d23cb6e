"""The training corpus: which pages of a package are written, and in which text format."""

from __future__ import annotations

import gzip
import os
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from recipes.reader.debian_docs import BUNDLED_TEXTS, Documentation, fetch_debian_docs, write_pages
from recipes.reader.npm_docs import fetch_npm_docs

PACKAGES = {
    "bees": Documentation("bees-doc", "bees/html", ["library/*.html"], cut=True),
    "wax": Documentation("wax-doc", "wax-doc", ["*.html"], "^release"),
}
SPHINX = '<html><body><div role="main"><h1>Wax</h1><p>Wax melts at 64 degrees.</p></div></body></html>'


def test_the_corpus_is_written_from_debian_packages(tmp_path: Path) -> None:
    bees = _package(tmp_path, "bees-doc", ["bees/html/library/bees.html", "bees/html/tutorial/bees.html"])
    wax = _package(tmp_path, "wax-doc", ["wax-doc/wax.html", "wax-doc/release-15.html", "wax-doc/copyright"])
    out = tmp_path / "corpus"
    page_counts = fetch_debian_docs(out, [bees, wax], PACKAGES)
    own = {name: len(list((out / name).iterdir())) for name in BUNDLED_TEXTS}
    assert page_counts == {"bees": 1, "wax": 1, **own}
    found = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.parent.name not in own}
    assert found == {"bees/library-bees.txt", "wax/wax.html", "wax.copyright"}


def test_a_package_without_the_pages_is_refused_and_files_stay(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.md").write_text("Bees dance.", encoding="utf-8")
    with pytest.raises(FileNotFoundError, match=r"bees-doc has no page like library/.* below bees/html"):
        write_pages(PACKAGES["bees"], tmp_path, tmp_path / "out")
    assert [page.name for page in (tmp_path / "out").iterdir()] == ["old.md"]


def _package(folder: Path, name: str, places: Sequence[str]) -> Path:
    """Build a Debian package with pages at these paths below /usr/share/doc."""
    for place in places:
        path = folder / name / "usr" / "share" / "doc" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SPHINX, encoding="utf-8")
    control = folder / name / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: none\n",
        encoding="utf-8",
    )
    deb = folder / f"{name}_1_all.deb"
    try:
        subprocess.run(["dpkg-deb", "-b", str(folder / name), str(deb)], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("dpkg-deb is not on this machine")
    return deb


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


def test_only_the_text_of_a_cut_page_is_written(tmp_path: Path) -> None:
    chosen = Documentation("bees-doc", "bees/html", ["howto/*.html"], cut=True)
    assert write_pages(chosen, _tree(tmp_path), tmp_path / "out") == 1
    text = (tmp_path / "out" / "howto-wax.txt").read_text(encoding="utf-8")
    assert "Wax melts at 64 degrees." in text
    assert "<" not in text


def test_pages_of_npm_packages_are_named_by_package_and_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake `npm` returns an archive from this folder instead of downloading from the registry."""
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
    assert fetch_npm_docs(["bees@1.0.0", "@hive/bees@2.0.0"], tmp_path / "out") == 2
    names = {page.name for page in (tmp_path / "out").iterdir()}
    assert names == {"bees-docs-dance.md", "hive-bees-docs-dance.md"}
