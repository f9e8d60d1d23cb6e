"""The import graph of the source files, for the tests and the architecture page.

It is parsed, not executed. A name that a package exports lazily counts as an import of the file that defines it.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("accel", "retrieval", "pipelines", "integrations")
FILES = {part: sorted((ROOT / part).rglob("*.py")) for part in PARTS}


@dataclass(frozen=True, slots=True)
class Import:
    """One import between two modules; `is_for_types` if it is made for type checking only."""

    importer: str
    imported: str
    line: int
    is_for_types: bool


def module_name(path: Path) -> str:
    """Return the module name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for paths in FILES.values() for path in paths}


def part_of(module: str) -> str:
    """Return the top-level part (accel, retrieval, ...) of a module."""
    return module.split(".")[1]


@cache
def imports_of(module: str) -> list[Import]:
    """Return every import of our own modules in a file: at its top, in functions and for type checking."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    for_types = {id(node) for block in _type_checking(tree) for node in ast.walk(block)}
    found = []
    for node in ast.walk(tree):
        for name in _named(node):
            target = resolve(name)
            if target is not None and target != module:
                found.append(Import(module, target, getattr(node, "lineno", 0), id(node) in for_types))
    return found


@cache
def resolve(name: str) -> str | None:
    """Return the module that defines a dotted name, through lazy exports; None if it is not ours."""
    if name in MODULES:
        return name
    package, _, last = name.rpartition(".")
    if package not in MODULES:
        return None
    stub = MODULES[package].with_suffix(".pyi")
    if stub.exists():
        for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and any(alias.asname == last for alias in node.names):
                return resolve(f"{package}.{node.module}")
    return package


def graph(part: str) -> dict[str, list[Import]]:
    """Return the imports within a part, by module."""
    own = [module for module in MODULES if part_of(module) == part]
    return {module: [each for each in imports_of(module) if part_of(each.imported) == part] for module in own}


def cycles(edges: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the import cycles: strongly connected components of more than one node (Tarjan)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for target in edges.get(node, ()):
            if target not in order:
                visit(target)
            if target in stack:
                low[node] = min(low[node], low[target])
        if low[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in edges:
        if node not in order:
            visit(node)
    return sorted(found)


def package_of(module: str, packages: Iterable[str]) -> str:
    """Return the package of a module: the longest of these folders or files (as a/b) that contains it, else "."."""
    inside = "/".join(module.split(".")[2:])
    containing = [each for each in packages if inside == each or inside.startswith(f"{each}/")]
    return max(containing, key=len, default=".")


def _type_checking(tree: ast.Module) -> Iterator[ast.If]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield node


def _named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
