"""The catalogue of deliberate faults: small changes of the source text, each a bug that existed or could exist."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "catalogue"
PARTS = ("accel", "retrieval", "pipelines", "integrations")


@dataclass(frozen=True)
class Edit:
    """A text in a module, and the text that replaces it."""

    module: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        """The module's source file."""
        place = Path(*self.module.split(".")).with_suffix(".py")
        return next(ROOT / part / place for part in PARTS if (ROOT / part / place).exists())

    def apply(self, source: str) -> str:
        """Return the source text with the fault.

        Raises:
            ValueError: The old text does not occur exactly once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{self.module} has {source.count(self.old)} times, not once:\n{self.old}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class Fault:
    """A deliberate fault.

    Attributes:
        name: A unique name.
        bug: What users would see.
        edits: The changed texts: the fault itself first, then checks that are switched off because they would hide it.
        tests: Test files, or tests, that probably detect it, the likeliest first.
    """

    name: str
    bug: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]


@cache
def faults() -> dict[str, Fault]:
    """Return all faults by name."""
    found: dict[str, Fault] = {}
    for file in sorted(FOLDER.glob("*.toml")):
        for entry in tomllib.loads(file.read_text(encoding="utf-8"))["fault"]:
            texts = [Edit(entry["module"], entry["old"], entry["new"])]
            texts += [Edit(**edit) for edit in entry.get("also", ())]
            if entry["name"] in found:
                raise ValueError(f"Two faults have the name {entry['name']}.")
            found[entry["name"]] = Fault(entry["name"], entry["bug"], tuple(texts), tuple(entry["tests"]))
    return found
