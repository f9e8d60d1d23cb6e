"""Downloads the Markdown documentation of npm packages with permissive licences.

Unlike Debian's pages, READMEs and manuals of these packages have fenced code, options in lists, and pipe tables.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

TRAINING: Sequence[str] = (
    "fastify@5.12.8", "pino@10.4.0", "axios@1.21.1", "markdownlint@0.40.0", "commander@14.0.3", "concurrently@9.2.5",
    "nodemon@3.1.14", "ioredis@6.0.0", "got@14.6.6", "helmet@8.3.0", "terser@5.51.2", "nock@15.0.2", "winston@3.19.0",
    "lint-staged@16.4.0", "dotenv@18.0.10", "execa@9.6.1", "mocha@12.0.3", "nan@2.30.0", "koffi@3.3.4",
    "node-gyp@12.4.0", "cmake-js@8.0.0", "prebuildify@6.0.1", "emnapi@1.11.3", "fluent-ffmpeg@2.1.3", "lmdb@3.5.6",
    "abstract-level@3.1.1", "classic-level@3.0.0", "leveldown@6.1.1", "zeromq@6.8.0", "node-hid@3.4.0",
)  # fmt: skip
"""Packages for training: MIT, except terser and dotenv (BSD-2-Clause) and zeromq (MIT and MPL-2.0)."""

OTHER: Sequence[str] = ("undici@7.30.2", "ws@8.23.0", "semver@7.8.6", "supertest@7.3.2", "yargs@18.2.0")
"""Packages for scoring, never for training: MIT, except semver (ISC)."""

_LEFT_OUT = re.compile(
    r"changelog|license|history|node_modules|upgrading|contribut|security|sponsor|code_of|migration|node-addon-api|OLD-README",
    re.IGNORECASE,
)


def fetch_npm_docs(packages: Sequence[str], target: Path) -> int:
    """Write the Markdown files of npm packages to a folder; return their number.

    Args:
        packages: Packages with versions.
        target: Folder to write to.

    Raises:
        FileNotFoundError: npm is not installed.
        RuntimeError: npm failed; the message has its output.
    """
    target.mkdir(parents=True, exist_ok=True)
    count = 0
    for package in packages:
        own = package.rpartition("@")[0].lstrip("@").replace("/", "-")  # one with a scope is @scope/name@version
        with TemporaryDirectory() as beside:
            for name, text in _pages(_packed(package, Path(beside))):
                (target / f"{own}-{name}").write_bytes(text)
                count += 1
    return count


def _packed(package: str, folder: Path) -> Path:
    command = ["npm", "pack", package, "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            "npm is not on this machine; install Node.js, or give documents of your own."
        ) from error
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return next(folder.glob("*.tgz"))


def _pages(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of a package's Markdown files, without changelogs, licences and the like."""
    with tarfile.open(archive) as files:
        for member in files:
            path = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if member.isfile() and path.suffix == ".md" and not _LEFT_OUT.search(str(path)):
                content = files.extractfile(member)
                if content is not None:
                    yield "-".join(path.parts), content.read()
