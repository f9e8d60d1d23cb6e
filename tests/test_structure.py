"""The structure of the code base: direction of imports, exports, docstrings, and sizes of files and functions."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests import architecture
from tests.allowed_imports import ALLOWED_IMPORTS
from tests.import_graph import Import, cycles, graph, module_name, package_of

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "accel": {"accel"},
    "retrieval": {"retrieval"},
    "pipelines": {"accel", "retrieval", "pipelines"},
    "integrations": {"accel", "retrieval", "pipelines", "integrations"},
}
MAY_IMPORT_FILES = {
    "retrieval": (
        "antiphon.accel.cache_folder",
        "antiphon.accel.no_telemetry",
        "antiphon.accel.files",
        "antiphon.accel.hub_download",
        "antiphon.accel.processor",
        "antiphon.accel.progress",
        "antiphon.accel.quiet_loading",
        "antiphon.accel.remote.errors",
        "antiphon.accel.remote.server",
        "antiphon.accel.files",
    )
}
"""Single files of another part that a part may import as well."""

FILES = {part: sorted((ROOT / part).rglob("*.py")) for part in MAY_IMPORT}
TESTS = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = [path for paths in FILES.values() for path in paths]


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def imports(path: Path) -> list[str]:
    """Return every name that a file imports, in functions and for type checking too."""
    names: list[str] = []
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import; use an absolute one"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_parts_import_only_allowed_parts(part: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in FILES[part]
        for name in imports(path)
        if name.split(".")[0] == "antiphon"
        and name.split(".")[1] not in MAY_IMPORT[part]
        and not any(f"{name}.".startswith(f"{file}.") for file in MAY_IMPORT_FILES.get(part, ()))
    ]
    assert FILES[part] or part == "integrations", f"{part} is empty"
    assert wrong == []


def imports_between_packages(part: str) -> list[tuple[Import, tuple[str, str]]]:
    """Return every import of a part from one of its packages in another."""
    found = [each for imports in graph(part).values() for each in imports]
    packages = ALLOWED_IMPORTS[part]
    pairs = [(each, (package_of(each.importer, packages), package_of(each.imported, packages))) for each in found]
    return [(each, (package, other)) for each, (package, other) in pairs if package != other]


@pytest.mark.parametrize("part", ALLOWED_IMPORTS)
def test_a_package_imports_only_allowed_packages(part: str) -> None:
    wrong = [
        f"{each.importer}:{each.line} imports {each.imported}"
        for each, (package, other) in imports_between_packages(part)
        if other not in ALLOWED_IMPORTS[part][package]
    ]
    assert wrong == []
    assert cycles(ALLOWED_IMPORTS[part]) == [], "packages that may import each other are one package"


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_there_are_no_import_cycles(part: str) -> None:
    """Imports in functions and for type checking count too."""
    assert cycles({file: [each.imported for each in found] for file, found in graph(part).items()}) == []


def test_the_architecture_page_has_the_current_import_diagram() -> None:
    assert f"{architecture.BEGIN}{architecture.drawn()}{architecture.END}" in architecture.PAGE.read_text("utf-8"), (
        "run: make architecture"
    )


def test_every_library_that_is_imported_is_declared_and_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *(each for extra in extras.values() for each in extra)]
    declared = {re.split(r"[^\w.-]", each)[0].lower() for each in required} - {"antiphon"}
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.split("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert declared <= pinned
    homes = importlib.metadata.packages_distributions()
    used = {name.split(".")[0] for path in SOURCES for name in imports(path)} - sys.stdlib_module_names - {"antiphon"}
    undeclared = [n for n in used if not declared & {home.lower().replace("_", "-") for home in homes.get(n, [n])}]
    assert undeclared == []


def test_models_are_reached_through_their_public_interface_alone() -> None:
    inside = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in [*SOURCES, *TESTS]
        for name in imports(path)
        if name.startswith("transformers.models")
    ]
    assert inside == []
    assert [path for path in SOURCES if path.name.startswith(("modeling_", "modular_", "configuration_"))] == []


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_the_four_roots_share_one_namespace(part: str) -> None:
    assert not (ROOT / part / "antiphon" / "__init__.py").exists(), "it would hide the other three parts"
    assert not (ROOT / part / "__init__.py").exists()
    assert (ROOT / part / "antiphon" / part / "py.typed").is_file()
    assert {path.parts[len(ROOT.parts) + 1] for path in FILES[part]} <= {"antiphon"}


def rank(name: str) -> tuple[int, str]:
    """Sort constants before types before functions, each alphabetically; lazy_loader sorts alphabetically only."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_exports_are_sorted_and_exist(part: str) -> None:
    modules = {}
    for name in map(module_name, FILES[part]):
        try:
            modules[name] = importlib.import_module(name)
        except ImportError as error:
            if part != "integrations" or "pip install" not in str(error):
                raise
    wrong = []
    for name, module in modules.items():
        offered = list(getattr(module, "__all__", []))
        lazy = Path(str(module.__file__)).with_suffix(".pyi").exists()
        if offered != sorted(set(offered), key=None if lazy else rank):
            wrong.append(f"{name}.__all__ is not sorted")
        hidden = [each for each in offered if getattr(module, each, None) in (None, modules.get(f"{name}.{each}"))]
        wrong += [f"{name}.{each} does not exist, or is hidden by a module of that name" for each in hidden]
    assert wrong == []


def loaded_after(importing: str, names: list[str]) -> str:
    """Return which of these modules a fresh interpreter has loaded after an import."""
    script = f"import sys\n{importing}\nprint(*[name for name in {names} if name in sys.modules])"
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=ROOT / "accel", capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_engine_and_retrieval_load_nothing_of_the_other_parts() -> None:
    heavy = ["faiss", "sentence_transformers", "antiphon.retrieval", "antiphon.pipelines", "antiphon.integrations"]
    heavy += ["torch", "transformers"]  # a model that is opened from the cache needs neither
    own = "antiphon.accel.language_model"
    assert loaded_after(f"import {own}", [*heavy, own]) == own
    heavy = ["torch", "transformers", "antiphon.accel.drafting", "antiphon.accel.engines", "antiphon.accel.decoding"]
    importing = "import antiphon.retrieval.index_folder.generations, antiphon.retrieval.indexing"
    assert loaded_after(importing, [*heavy, "antiphon.accel.files"]) == "antiphon.accel.files"


def test_every_module_has_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *TESTS]
        if path.name != "conftest.py" and not ast.get_docstring(parse(path))
    ]
    assert silent == []


def test_drafting_loads_neither_torch_nor_transformers() -> None:
    """Engines without torch, and workers that only draft, import this package alone."""
    names = [module_name(path) for path in FILES["accel"] if "antiphon/accel/drafting" in path.as_posix()]
    assert len(names) > 10
    everything = "\n".join(f"import {name}" for name in names)
    assert loaded_after(everything, ["torch", "transformers", "safetensors.torch", names[-1]]) == names[-1]


def test_only_the_engine_keeps_state_per_model() -> None:
    maps = [path.name for path in FILES["accel"] if ": WeakKeyDictionary[" in path.read_text(encoding="utf-8")]
    assert maps == ["engine.py"], "state of a model belongs to its engine"
