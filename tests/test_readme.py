"""The README is short, and what it shows works: its Python runs, its figures are stored, its links lead somewhere."""

import asyncio
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from antiphon.accel.drafting.drafters import BITA, DRAFTERS
from antiphon.accel.testing.tiny import byte_tokenizer, tiny_model
from antiphon.retrieval import HashEmbedder, build_index

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)
MODEL = "Qwen/Qwen3-8B"
DOCUMENT = (
    "Keys are rotated once a year.\n\nTo rotate the keys, run rotate.sh as an administrator, and keep the old ones.\n"
)
RUNS = (
    ("blend@openvino", "reader", "bfloat16", 3),
    ("blend@openvino", "smollm2", "bfloat16", 5),
    ("blend@openvino", "smollm2", "bfloat16", 0),
    ("blend@openvino", "reader", "float32", 3),
    ("blend@openvino", "smollm2", "float32", 5),
    ("blend", "reader", "bfloat16", 3),
    ("blend", "smollm2", "bfloat16", 5),
)
"""The rows of the table: of OpenVINO's results the newest of a kind, of torch's the first."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny stand-in for the model that the README names, with room for a prompt of bytes."""
    folder = tmp_path_factory.mktemp("model")
    tiny_model(max_position_embeddings=16_384).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def test_the_readme_is_a_door() -> None:
    """At most 700 words and four blocks of code; the house is in the docs."""
    assert len(README.split()) <= 700
    indented = re.findall(
        r"(?:^ {4}.*\n)+", re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    assert len(BLOCKS) == README.count("```") // 2 == 3
    assert len(BLOCKS) + len(indented) <= 4
    assert all(MODEL in block for block in BLOCKS)


def test_the_links_of_the_readme_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.fixture
def _loop() -> Iterator[None]:
    """LlamaIndex would make a loop and leave it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


@pytest.mark.usefixtures("_loop")
@pytest.mark.parametrize("index", range(len(BLOCKS)))
def test_the_python_of_the_readme_runs(
    index: int,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "keys.md").write_text(DOCUMENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    build_index(["keys.md"], "my-index", embedder=HashEmbedder())
    code = BLOCKS[index].replace(MODEL, str(checkpoint))
    exec(compile(code, f"README.md, block {index}", "exec", dont_inherit=True), {})
    assert capsys.readouterr().out


def table(page: str, heading: str) -> list[str]:
    """The names in code type that begin the rows of the first table of a page's section."""
    section = f"\n{(ROOT / 'docs' / page).read_text(encoding='utf-8')}".split(f"\n{heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \|", section, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_figures_of_the_first_table_are_stored_results() -> None:
    """Row by row: against greedy decoding, the best lookup, that with the prompt's reading, and tokens per step."""
    number = r"(\d+\.\d\d)"
    shown = re.findall(rf"^\| [^|]+ \| {number} \| {number} \| {number} \| {number} \|$", README, re.MULTILINE)
    assert [stored(*run) for run in RUNS] == shown


def stored(method: str, model: str, dtype: str, passages: int) -> tuple[str, ...]:
    """The figures of a run as the README shows them."""
    is_torch = method == "blend"
    path = ROOT / "docs" / "results" / ("speed.jsonl" if is_torch else "openvino.jsonl")
    runs = [run for run in map(json.loads, path.read_text(encoding="utf-8").splitlines()) if "methods" in run]
    same = [run for run in runs if (run["model"], run["dtype"], run["passages"]) == (model, dtype, passages)]
    methods = {each["method"]: each for each in same[0 if is_torch else -1]["methods"]}
    ours = methods[method]
    if is_torch:
        whole = max(each["speedup_whole"] for name, each in methods.items() if name.startswith("hf-lookup"))
        best = ours["speedup_lookup"], ours["speedup_whole"] / whole
    else:
        best = ours["speedup_best"], ours["speedup_best_whole"]
    return tuple(f"{each:.2f}" for each in (ours["speedup"], *best, ours["tokens_per_step"]))


def test_the_figures_of_vllm_are_those_of_its_page() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    said = re.findall(r"\d\.\d\d", README.split("[In vLLM]")[1].split("\n\n")[0])
    assert len(said) == 6
    assert set(said) <= set(re.findall(r"\d\.\d\d", page.split("| at once |")[1].split("\n\n")[0]))


def test_the_table_of_drafters_is_whole() -> None:
    named = {name for name in table("drafters.md", "# Drafters") if not name.startswith("--")}
    assert named == {*DRAFTERS, BITA, "auto"}


def test_the_table_of_extras_is_whole() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(table("install.md", "# Install")) == sorted(set(project["optional-dependencies"]) - {"all"})


def test_the_commands_of_the_readme_are_targets_of_make() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)", README)) <= targets
