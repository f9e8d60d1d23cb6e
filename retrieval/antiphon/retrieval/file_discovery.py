"""Find the files below paths, and record which files are skipped and why. No file is opened."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.retrieval.source_file import normalized_name


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A skipped file or folder, and the reason. The name may contain any character that the system allows."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Root:
    """The path of a file or folder as a user gave it, and the folder to which the path is relative."""

    given: str
    base: str

    @classmethod
    def of(cls, path: str | Path | Root) -> Root:
        """Return the `Root` of a path; a relative path is relative to the working directory."""
        return path if isinstance(path, Root) else cls(str(path), str(Path.cwd()))

    @property
    def path(self) -> Path:
        """The path of the file or folder. It is relative if ``base`` is the working directory."""
        return Path(self.given) if self.base == str(Path.cwd()) else Path(self.base, self.given)

    def name_of(self, file: Path) -> str:
        """Return the name of a file below the root: its path as the user would give it, with composed letters."""
        is_relative = file.is_absolute() and not Path(self.given).is_absolute()
        return normalized_name(str(file.relative_to(self.base) if is_relative else file))


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file to read.

    Attributes:
        real: The path of the file without symbolic links.
        source: The name of the file for users.
        is_named: Whether the caller named the file itself, instead of a folder that contains it.
    """

    path: Path
    real: Path
    source: str
    root: Root
    is_named: bool


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The files to read, in order and without duplicates, and the skipped files and folders."""

    files: tuple[FoundFile, ...]
    skipped: tuple[SkippedFile, ...]


def find_files(
    paths: Sequence[str | Path | Root], exclude: Sequence[str | Path] = (), *, follow_links: bool = False
) -> FoundFiles:
    """Find the files below paths, without hidden files. The files below each path are sorted.

    Folders that cannot be listed and names that are not UTF-8 are skipped with a reason.

    Args:
        paths: Files and folders. Symbolic links among them are followed.
        exclude: Files and folders to leave out, with everything below them.
        follow_links: Also follow a symbolic link inside a folder if its target is outside of
            ``paths``. By default such links are skipped with a reason.

    Raises:
        ValueError: ``paths`` is empty, or a single path instead of a list.
        FileNotFoundError: A path does not exist.
    """
    if isinstance(paths, (str, Path)) or not paths:
        raise ValueError(f"paths is {paths!r}; a list of at least one file or folder is needed.")
    given = [Root.of(path) for path in paths]
    for root in given:
        if not os.path.lexists(root.path):
            raise FileNotFoundError(f"{root.path} does not exist; give the path of a file or a folder.")
    inside = [_real(root.path) for root in given]
    left_out = [_real(path) for path in exclude]
    found: dict[Path, FoundFile] = {}
    skipped: dict[Path, SkippedFile] = {}
    names: set[tuple[str, str]] = set()
    for root in given:
        path, walk = root.path, _Walk(inside, follow_links)
        files = sorted(walk.files(path)) if path.is_dir() else [path]
        skipped |= {Path(each.path): each for each in walk.skipped}
        for file in files:
            real = _real(file)
            if any(real.is_relative_to(folder) for folder in left_out):
                continue
            if reason := _unusable(str(file)):
                skipped.setdefault(file, SkippedFile(str(file), reason))
            elif real not in found:
                name = root.name_of(file)
                name = str(file) if (root.base, name) in names else name  # differs only in the form of letters
                names.add((root.base, name))
                found[real] = FoundFile(file, real, name, root, file is path)
    return FoundFiles(tuple(found.values()), tuple(skipped[path] for path in sorted(skipped)))


class _Walk:
    """Walks through a folder, and records the files and folders that it skips."""

    def __init__(self, inside: Sequence[Path], follow_links: bool) -> None:
        self.skipped: list[SkippedFile] = []
        self._inside = inside
        self._follow_links = follow_links
        self._entered: set[Path] = set()

    def files(self, top: Path) -> Iterator[Path]:
        """Yield the files in a folder and its subfolders, unsorted. No folder is entered twice."""
        for root, folders, names in os.walk(top, onerror=self._unlisted, followlinks=self._follow_links):
            folders[:] = [name for name in folders if not name.startswith(".") and self._enters(Path(root, name))]
            paths = (Path(root, name) for name in names if not name.startswith("."))
            yield from (path for path in paths if not path.is_symlink() or self._follows(path, "file"))

    def _enters(self, folder: Path) -> bool:
        if folder.is_symlink() and not self._follows(folder, "folder"):
            return False
        real = _real(folder)
        is_new = real not in self._entered
        self._entered.add(real)
        return is_new

    def _follows(self, link: Path, kind: str) -> bool:
        real = _real(link)
        if self._follow_links or any(real.is_relative_to(folder) for folder in self._inside):
            return True
        reason = f"it is a link to a {kind} outside of what is indexed; to read it, follow links or name it"
        self.skipped.append(SkippedFile(str(link), reason))
        return False

    def _unlisted(self, error: OSError) -> None:
        self.skipped.append(SkippedFile(str(error.filename), f"it cannot be listed: {error.strerror}"))


def _unusable(path: str) -> str:
    """Return why an index cannot contain a path, or an empty string."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8; rename it"
    return ""


def _real(path: str | Path) -> Path:
    """Return the target of a path. `Path.resolve` fails for a link to itself; then the link is returned."""
    return Path(os.path.realpath(path))
