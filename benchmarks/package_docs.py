"""Corpora of documents from pinned packages, with 24 questions each and conversations.

Questions and answers were written before any was asked. No setting was chosen on those of trio, lmfit and pip.

python -m benchmarks.package_docs FOLDER
python -m benchmarks.own_questions FOLDER --out answers.jsonl
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.program import program

QUESTIONS = Path(__file__).with_name("package_questions.jsonl")
CONVERSATIONS = Path(__file__).with_name("package_conversations.jsonl")

DOCUMENTS = {
    "structlog": ("structlog==26.1.0", "docs"),
    "trio": ("trio==0.35.0", "docs/source"),
    "lmfit": ("lmfit==1.3.4", "doc"),
    "pip": ("pip==26.3", "docs/html"),
}
"""Requirement and folder of the source distribution, by corpus."""

SUFFIXES = (".md", ".rst")


def write_package_docs(folder: Path) -> None:
    """Download the source distributions and write their documents, one subfolder per corpus, and the questions.

    Args:
        folder: The folder; `python -m benchmarks.answers` takes it.

    Raises:
        subprocess.CalledProcessError: pip cannot download a package.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(QUESTIONS, folder / "questions.jsonl")
    shutil.copy(CONVERSATIONS, folder / "conversations.jsonl")
    for corpus, (requirement, under) in DOCUMENTS.items():
        with TemporaryDirectory() as temporary:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
            subprocess.run([*pip, "--dest", temporary, requirement], check=True)
            extract_documents(next(Path(temporary).glob("*.tar.gz")), under, folder / corpus)


def extract_documents(archive: Path, under: str, folder: Path) -> None:
    """Write the documents below one folder of a source distribution, with their subfolders.

    Args:
        archive: The source distribution.
        under: Folder inside its top folder.
        folder: Where to write.
    """
    with tarfile.open(archive) as tar:
        for place, member in _documents(tar, under):
            content = tar.extractfile(member)
            assert content is not None  # a file, not a folder
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            (folder / place).write_bytes(content.read())


def _documents(tar: tarfile.TarFile, under: str) -> Iterator[tuple[PurePosixPath, tarfile.TarInfo]]:
    """Yield each document with its path below the folder."""
    for member in tar.getmembers():
        path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
        if member.isfile() and path.suffix in SUFFIXES and path.is_relative_to(under) and ".." not in path.parts:
            yield path.relative_to(under), member


def package_docs(folder: Annotated[Path, typer.Argument(help="Where to write the corpora and the questions.")]) -> None:
    """Write corpora of documents from pinned packages, their questions, and conversations."""
    write_package_docs(folder)


app = program(package_docs)

if __name__ == "__main__":
    app()
