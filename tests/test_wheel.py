"""The wheel, built from the source distribution, is whole: a clean environment imports it and its command answers."""

import importlib.metadata as metadata
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

ROOT = Path(__file__).parents[1]
PARTS = ("accel", "retrieval", "pipelines", "integrations")
IMPORTS = """
import importlib, pkgutil, sys
from pathlib import Path
site = Path(sys.prefix).resolve()
for part in sys.argv[1:]:
    package = importlib.import_module(f"antiphon.{part}")
    modules = [name for _, name, _ in pkgutil.walk_packages(package.__path__, f"antiphon.{part}.")]
    for name in modules if part != "integrations" else ():
        if name.endswith("__main__"):
            continue
        try:
            importlib.import_module(name)
        except ImportError as error:  # an optional extra is missing, and the module names it
            if "pip install 'antiphon[" not in str(error):
                raise
    places = [Path(place).resolve() for place in package.__path__]
    assert places and all(place.is_relative_to(site) for place in places), places
    print(part, len(modules))
"""


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints, started where no source of ours lies."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=Path.cwd().anchor,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needed(wheel_requirements: list[str], extras: Sequence[str] = ()) -> set[str]:
    """The distributions that an install of the wheel with these extras brings along, with what those need in turn."""
    found: set[str] = set()
    queue = [(Requirement(text), extra) for text in wheel_requirements for extra in ("", *extras)]
    while queue:
        requirement, extra = queue.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        if name == "antiphon":
            queue += [(Requirement(text), each) for text in wheel_requirements for each in requirement.extras]
            continue
        if name in found and not requirement.extras:
            continue
        found.add(name)
        requires = metadata.distribution(name).requires or []
        queue += [(Requirement(text), each) for text in requires for each in ("", *requirement.extras)]
    return found


def entries(name: str) -> Iterator[str]:
    """The names that a distribution has put into site-packages."""
    for file in metadata.files(name) or []:
        if file.parts[0] not in ("..", "__pycache__"):
            yield file.parts[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    (built,) = out.glob("*.whl")
    return built


def installed(wheel: Path, folder: Path, extras: Sequence[str] = (), alone: Sequence[str] = ()) -> Path:
    """A new environment that holds the wheel and, as links, what it declares that it needs, and ``alone``: no more."""
    venv.create(folder, symlinks=True)
    run(sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--no-deps", "--no-index", wheel)
    (site,) = folder.glob("lib/python*/site-packages")
    own = metadata.PathDistribution(next(site.glob("antiphon-*.dist-info")))
    ours = Path(sysconfig.get_paths()["purelib"])
    for name in {*needed(own.requires or [], extras), *alone}:
        for entry in set(entries(name)):
            if not (site / entry).exists():
                (site / entry).symlink_to(ours / entry)
    return folder


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("clean"))


def test_the_wheel_holds_the_four_parts_and_all_their_files(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    listed = run("git", "-C", ROOT, "ls-files", *PARTS) if (ROOT / ".git").exists() else ""
    expected = {file.split("/", 1)[1] for file in listed.splitlines()}
    expected |= {f"antiphon/{part}/py.typed" for part in PARTS}
    assert sorted(expected - held) == []
    assert {name.split("/")[0] for name in held if "dist-info" not in name} == {"antiphon"}
    assert "antiphon/__init__.py" not in held


def test_the_wheel_has_no_recipes_or_benchmarks_of_maintainers(wheel: Path) -> None:
    held = [name for name in zipfile.ZipFile(wheel).namelist() if "dist-info" not in name]
    assert [name for name in held if {"recipes", "benchmarks", "corpora"} & set(name.split("/"))] == []
    data = {name.rsplit("/", 1)[-1] for name in held if name.endswith(".jsonl")}
    assert data == {
        "answers.jsonl",
        "demo_tasks.jsonl",
        "edits.jsonl",
        "genres.jsonl",
        "translation.jsonl",
    }


def test_the_wheel_carries_the_licences_and_the_demo_documents(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in held)
    libraries = [Path(name).name.partition(".")[0] for name in held if "/web/vendor/" in name and name.endswith(".js")]
    assert len(libraries) == 3
    for library in libraries:
        assert sum(name.endswith(f"/{library}.LICENSE") for name in held) == 2, "next to it, and with the others"
    documents = [name for name in held if "/data/python-docs/" in name]
    assert any(name.endswith("LICENSE.txt") for name in documents)
    assert len(documents) > 10


def test_a_clean_environment_imports_every_module_and_the_command_answers(clean: Path) -> None:
    printed = run(clean / "bin" / "python", "-W", "error::SyntaxWarning", "-c", IMPORTS, *PARTS)
    assert [line.split()[0] for line in printed.splitlines()] == list(PARTS)
    printed = run(clean / "bin" / "antiphon", "--help", TERM="dumb", COLUMNS="100")
    for command in ("index", "ask", "demo", "bench"):
        assert command in printed
