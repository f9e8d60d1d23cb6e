"""Draw the import diagram of docs/architecture.md from the source files.

    python -m tests.architecture

writes it between the two marks in docs/architecture.md; a test compares.
"""

from collections.abc import Iterable, Mapping

from tests.allowed_imports import ALLOWED_IMPORTS
from tests.import_graph import MODULES, PARTS, ROOT, imports_of, package_of, part_of

PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by make architecture -->\n", "<!-- end of what is drawn -->\n"
DRAWN: Mapping[str, tuple[str, ...]] = {
    "accel": tuple(ALLOWED_IMPORTS["accel"]),
    "retrieval": (),
    "pipelines": tuple(ALLOWED_IMPORTS["pipelines"]),
    "integrations": ("langchain", "llama_index", "vllm"),
}
"""The packages that are drawn, lowest first."""


def drawn() -> str:
    """Return the diagram: each package with the packages it imports, in functions and for type checking too."""
    parts = {part: {part_of(each.imported) for module in own(part) for each in imports_of(module)} for part in PARTS}
    lines = ["```text", *(_line(part, parts[part] - {part}, PARTS) for part in PARTS)]
    for part in PARTS:
        if DRAWN[part]:
            lines += ["", part, *(f"  {line}" for line in _packages(part))]
    return "\n".join([*lines, "```", ""])


def own(part: str) -> list[str]:
    """Return the module names of a part."""
    return [module for module in MODULES if part_of(module) == part]


def _packages(part: str) -> list[str]:
    packages = DRAWN[part] if "." in DRAWN[part] else (".", *DRAWN[part])
    found: dict[str, set[str]] = {package: set() for package in packages}
    for module in own(part):
        package = package_of(module, packages)
        found[package] |= {
            package_of(each.imported, packages) for each in imports_of(module) if part_of(each.imported) == part
        }
    return [
        _line(_name(package), {_name(other) for other in found[package] - {package}}, map(_name, packages))
        for package in packages
    ]


def _name(package: str) -> str:
    return "(root)" if package == "." else package


def _line(name: str, imported: set[str], order: Iterable[str]) -> str:
    """Format one package and its imports in the order of the page."""
    known = ", ".join(each for each in order if each in imported)
    return f"{name:<18}-> {known}" if known else name


def main() -> None:
    """Write the diagram into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}{drawn()}{END}{rest.split(END)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
