"""The README: its Python runs, its figures are stored results, its commands and links exist."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from antiphon.accel import resolve_model
from antiphon.accel.drafting.drafters import BITA, DRAFTERS
from antiphon.retrieval import build_index

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
DOCUMENT = (
    "Keys are rotated once a year.\n\nTo rotate the keys, run rotate.sh as an administrator, and keep the old ones.\n"
)
QUESTION, OTHER_QUESTION = "Do drafts change the text?", "How do I rotate the keys?"
RUNS = (("qwen2.5-0.5b", "bfloat16", 5, "Intel"), ("smollm2", "float32", 5, "AMD"))
"""Model, dtype, passages and processor of each row of the speed table: the newest OpenVINO run of that kind."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a document and the index that the blocks of the README open."""
    try:
        resolve_model("reader")
    except ImportError as error:
        pytest.skip(f"the embedded language model is not installed: {error}")
    folder = tmp_path_factory.mktemp("readme")
    (folder / "docs").mkdir()
    (folder / "docs" / "keys.md").write_text(DOCUMENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        build_index(["docs"], "my-index", embedder="minilm")
    return folder


def test_the_links_of_the_readme_exist() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_python_of_the_readme_runs_without_bars_and_warnings(folder: Path) -> None:
    assert all(QUESTION in block for block in BLOCKS)
    code = "\n".join(BLOCKS).replace(QUESTION, OTHER_QUESTION)
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("run rotate.sh") >= len(BLOCKS)


def table(page: str, heading: str) -> list[str]:
    """Return the names in code type that begin the rows of the first table of a page's section."""
    section = f"\n{(ROOT / 'docs' / page).read_text(encoding='utf-8')}".split(f"\n{heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_figures_of_the_speed_table_are_stored_results() -> None:
    """Row by row: factor over the fastest prompt lookup, and the same with prefill; below, over greedy decoding."""
    shown = re.findall(r"^\| CPU [^|]+ \| (\d+\.\d\d) \| (\d+\.\d\d) \|$", README, re.MULTILINE)
    assert [stored(*run)[1:] for run in RUNS] == shown
    first, second = (stored(*run)[0] for run in RUNS)
    assert f"greedy decoding of transformers, the factors (without prefill) are {first} and {second}." in README


def stored(model: str, dtype: str, passages: int, processor: str) -> tuple[str, ...]:
    """Return the figures of a stored run as the README shows them."""
    lines = (ROOT / "docs" / "results" / "openvino.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [run for run in map(json.loads, lines) if "methods" in run and run["processor"].startswith(processor)]
    same = [run for run in runs if (run["model"], run["dtype"], run["passages"]) == (model, dtype, passages)]
    [ours] = [each for each in same[-1]["methods"] if each["method"] == "blend@openvino"]
    names = ("speedup", "speedup_best", "speedup_best_whole")
    return tuple(f"{ours[name]:.2f}" for name in names)


def test_the_figures_of_vllm_are_those_of_its_page() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    quoted = re.findall(r"\d\.\d\d", README.split("[In vLLM]")[1].split("\n\n")[0])
    assert len(quoted) == 2
    rows = re.findall(r"^\|(?: at once | concurrent requests |\s*[\w, ]*\d).*$", page, re.MULTILINE)
    assert set(quoted) <= set(re.findall(r"\d\.\d\d", "\n".join(rows)))


def test_the_tables_of_drafters_and_extras_are_complete() -> None:
    named = {name for name in table("drafters.md", "# Drafters") if not name.startswith("--")}
    assert named == {*DRAFTERS, BITA, "auto"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(table("install.md", "# Install")) == sorted(set(project["optional-dependencies"]) - {"all"})


def test_the_make_commands_of_the_readme_and_contributing_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:^ {4}|`)make ([a-z-]+)", README + contributing, flags=re.MULTILINE))
    assert {"demo", "check", "test", "test-vllm"} <= named <= targets
