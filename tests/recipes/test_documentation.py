"""The training corpus: which pages of a package are written, and in which text format."""

from __future__ import annotations

import gzip
from pathlib import Path

from recipes.reader.debian_docs import Documentation, write_pages

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
