"""The reader's training corpus: documentation from Debian packages, and everyday texts. Knows nothing of lessons.

Both licences are permissive (PSF-2.0 and the PostgreSQL licence); each package's notice is kept beside its pages. The
everyday texts (rules, recipes, histories) and the manuals (of programs and houses, with code, tables and lists) were
written for this and ship with it, in ``everyday.jsonl`` and ``manuals.jsonl``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.pipelines.data.python_docs import page_text

PACKAGES: Mapping[str, str] = {"python": "python3.11-doc", "postgresql": "postgresql-doc-15"}
"""The folder of the corpus, and the package that it is made from."""

WRITTEN: Mapping[str, Path] = {name: Path(__file__).parent / f"{name}.jsonl" for name in ("everyday", "manuals")}
"""The folders of the corpus whose texts ship with it, and the file that holds them."""

_PYTHON = ("library", "reference", "using", "c-api", "extending", "distutils", "whatsnew")
"""Parts of the Python documentation; those of the demo (tutorial, FAQ, glossary, how-to guides) are none of them."""

_NOT_POSTGRESQL = ("release*.html", "bookindex.html", "*symbols*", "index.html")
"""Lists of changes and of links."""


def fetch(out: Path, packages: Sequence[Path] = ()) -> Mapping[str, int]:
    """Write the corpus into the folder ``out`` and say how many pages each part has.

    ``packages`` are the two .deb files; those that are not given are downloaded with apt-get.

    Raises:
        FileNotFoundError: a tool of Debian is missing, or a package was not found.
        RuntimeError: a tool failed; the message has what it printed.
    """
    pages = {}
    for name, package in PACKAGES.items():
        with TemporaryDirectory() as beside:
            folder = Path(beside)
            _run(["dpkg-deb", "-x", str(_package(package, packages, folder)), str(folder / "tree")])
            html = next(folder.glob("tree/usr/share/doc/*/html"))
            target = out / name
            shutil.rmtree(target, ignore_errors=True)
            target.mkdir(parents=True)
            pages[name] = _python(html, target) if name == "python" else _postgresql(html, target)
            notice = folder / "tree" / "usr" / "share" / "doc" / package / "copyright"
            shutil.copyfile(notice, out / f"{name}.copyright")
    return pages | {name: write_texts(file, out / name) for name, file in WRITTEN.items()}


def write_texts(file: Path, target: Path) -> int:
    """Write the texts of a file of JSON lines into a folder, a file each, and say how many they are."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    texts = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for one in texts:
        (target / f"{one['name']}.md").write_text(one["text"], encoding="utf-8")
    return len(texts)


def _package(name: str, given: Iterable[Path], folder: Path) -> Path:
    """The package's file: one of those given, or downloaded into ``folder``."""
    for path in given:
        if path.name.startswith(f"{name}_"):
            return path.resolve()
    _run(["apt-get", "download", name], cwd=folder)
    found = next(folder.glob(f"{name}_*.deb"), None)
    if found is None:
        raise FileNotFoundError(f"apt-get downloaded no package {name}; give its .deb file instead.")
    return found


def _python(html: Path, target: Path) -> int:
    pages = [page for part in _PYTHON for page in sorted((html / part).rglob("*.html"))]
    for page in pages:
        name = "-".join(page.relative_to(html).with_suffix("").parts)
        (target / f"{name}.txt").write_text(page_text(page.read_text(encoding="utf-8")), encoding="utf-8")
    return len(pages)


def _postgresql(html: Path, target: Path) -> int:
    pages = [page for page in sorted(html.glob("*.html")) if not any(page.match(name) for name in _NOT_POSTGRESQL)]
    for page in pages:
        shutil.copyfile(page, target / page.name)
    return len(pages)


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{command[0]} is not on this machine; it comes with Debian and Ubuntu. Elsewhere, teach on documents of "
            "your own: antiphon reader train DIR --out ADAPTER"
        ) from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
