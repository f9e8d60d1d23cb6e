"""Downloads documentation from Debian packages, and writes the bundled texts.

All licences are permissive; a package's notice is copied next to its pages if it has one. The everyday texts (rules,
recipes, histories) and the manuals (of programs and houses, with code, tables and lists) were written for this.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from recipes.python_docs import page_text


@dataclass(frozen=True, slots=True)
class Documentation:
    """Documentation pages of a package.

    Attributes:
        package: Name of the Debian package.
        folder: Folder below ``/usr/share/doc``.
        pages: Glob patterns below ``folder``.
        without: Regular expression of page names to leave out.
        cut: Whether to take only the text of the page's main part (`page_text`), not the file as it is.
    """

    package: str
    folder: str
    pages: Sequence[str]
    without: str = "(?!)"  # nothing
    cut: bool = False


_PYTHON = ("library", "reference", "using", "c-api", "extending", "distutils", "whatsnew")
"""Parts of Python's documentation, without those of the demo (tutorial, FAQ, glossary, how-to guides)."""

PACKAGES: Mapping[str, Documentation] = {
    "python": Documentation(
        "python3.11-doc",
        "python3.11/html",
        [f"{part}/**/*.html" for part in _PYTHON],
        cut=True,
    ),
    "postgresql": Documentation(
        "postgresql-doc-15", "postgresql-doc-15/html", ["*.html"], r"^release|^bookindex\.|symbols|^index\."
    ),
    "catch2": Documentation(
        "catch2", "catch2", ["docs/*.md*"], "release-notes|opensource-users|commercial|contributing|list-of"
    ),
    "curl": Documentation("libcurl4-doc", "libcurl4", ["*.md*"], "ROADMAP|GOVERN|CODE_|DEPREC|TODO|BINDINGS|ECH"),
    "node": Documentation("nodejs-doc", "nodejs/api", ["*.md*"], "^(all|documentation|synopsis|index)"),
    "sdl": Documentation("libsdl2-doc", "libsdl2-doc/html", ["**/md__r_e_a_d_m_e*.html"]),
    "doctest": Documentation("doctest-dev", "doctest-dev", ["*.html"], "changelog|roadmap|index"),
    "fmt": Documentation("libfmt-doc", "libfmt-doc", ["*.html"], "genindex|search|contents"),
    "flask": Documentation(
        "python-flask-doc",
        "python-flask-doc/html",
        ["**/*.html"],
        "genindex|search|changes|_modules|license|py-mod|contributing",
        cut=True,
    ),
    "pytest": Documentation(
        "python-pytest-doc",
        "python-pytest-doc/html",
        ["how-to/*.html", "reference/*.html", "explanation/*.html"],
        "plugin_list",
        cut=True,
    ),
    "django": Documentation(
        "python-django-doc",
        "python-django-doc/html",
        ["howto/*.html", "howto/*/*.html", "topics/*.html", "topics/*/*.html", "faq/*.html"],
    ),
    "sqlite": Documentation(
        "sqlite3-doc",
        "sqlite3",
        ["*.html"],
        "(?i)change|keyword|releaselog|sitemap|index|toc|doclist|copyright|support|consort|news|capi3ref|35to36|th3"
        "|testing|btreemodule|vdbe|press|privatebranch|famous|hp1|books|crew|search|syntax",
    ),
    "cmake": Documentation(
        "cmake-doc",
        "cmake-data/html",
        ["manual/*.html", "generator/*.html", "guide/**/*.html"],
        cut=True,
    ),
    "rust": Documentation("rust-doc", "rust-doc/html/book", ["ch*.html"]),
}
"""Folders of the corpus and their packages."""

BUNDLED_TEXTS: Mapping[str, Path] = {
    name: Path(__file__).parent / "data" / f"{name}.jsonl" for name in ("everyday", "manuals")
}
"""Folders of the corpus with bundled texts, and their files."""


def fetch_debian_docs(
    out: Path, files: Sequence[Path] = (), packages: Mapping[str, Documentation] = PACKAGES
) -> Mapping[str, int]:
    """Write the corpus to a folder; return the number of pages of each part.

    Args:
        out: Folder to write to.
        files: .deb files; missing packages are downloaded with apt-get.
        packages: Folders of the corpus and their packages.

    Raises:
        FileNotFoundError: a tool of Debian or a package is missing, or the package has none of the pages.
        RuntimeError: a tool failed; the message has its output.
        ValueError: a page has no main part.
    """
    pages = {}
    for name, documentation in packages.items():
        with TemporaryDirectory() as beside:
            folder = Path(beside)
            file = _package(documentation.package, files, folder)
            tree = folder / "tree"
            _run(["dpkg-deb", "-x", str(file), str(tree)])
            pages[name] = write_pages(documentation, tree / "usr" / "share" / "doc", out / name)
            notice = tree / "usr" / "share" / "doc" / documentation.package / "copyright"
            if notice.is_file():  # cmake-doc refers to that of cmake-data
                shutil.copyfile(notice, out / f"{name}.copyright")
    return pages | {name: write_texts(file, out / name) for name, file in BUNDLED_TEXTS.items()}


def write_pages(documentation: Documentation, tree: Path, target: Path) -> int:
    """Write the pages of an unpacked package to a folder; return their number.

    Args:
        documentation: The package and its pages.
        tree: Folder of the unpacked documentation.
        target: Folder to write to.

    Raises:
        FileNotFoundError: the package has none of the pages.
        ValueError: a page has no main part.
    """
    folder = tree / documentation.folder
    pages = {page for pattern in documentation.pages for page in folder.glob(pattern)}
    if not pages:
        raise FileNotFoundError(
            f"{documentation.package} has no page like {', '.join(documentation.pages)} below {documentation.folder}; "
            "give the .deb file of another version."
        )
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    count = 0
    for page in sorted(pages):
        name = "-".join(page.relative_to(folder).parts).removesuffix(".gz")
        if re.search(documentation.without, name):
            continue
        text = gzip.decompress(page.read_bytes()) if page.suffix == ".gz" else page.read_bytes()
        if documentation.cut:
            name, text = f"{name.rpartition('.')[0]}.txt", page_text(text.decode()).encode()
        (target / name).write_bytes(text)
        count += 1
    return count


def write_texts(file: Path, target: Path) -> int:
    """Write each text of a JSON Lines file to a file of a folder; return their number.

    Args:
        file: Bundled texts.
        target: Folder to write to.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    texts = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    for one in texts:
        (target / f"{one['name']}.md").write_text(one["text"], encoding="utf-8")
    return len(texts)


def _package(name: str, given: Iterable[Path], folder: Path) -> Path:
    """Return the package's file: one of the given files, or downloaded to ``folder``."""
    for path in given:
        if path.name.startswith(f"{name}_"):
            return path.resolve()
    _run(["apt-get", "download", name], cwd=folder)
    found = next(folder.glob(f"{name}_*.deb"), None)
    if found is None:
        raise FileNotFoundError(f"apt-get downloaded no package {name}; give its .deb file instead.")
    return found


def _run(command: Sequence[str], cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{command[0]} is not installed; it is part of Debian and Ubuntu. Elsewhere, train on your own "
            "documents: python -m recipes.reader train DIR --out ADAPTER"
        ) from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip() or done.stdout.strip()}")
