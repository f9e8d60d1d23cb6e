"""Weights are downloaded from the hub once, with progress, and continued after an interruption."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import NAME, FakeHub, fake_hub, run_with_hub

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


SCRIPT = """
import json, sys
from pathlib import Path
from antiphon.retrieval import Retriever, build_index
Path("bees.md").write_text("Bees dance to tell each other where the flowers are.")
said = []
try:
    build_index(["bees.md"], "index", embedder="someone/model", device="cpu", progress=lambda *each: said.append(each))
    print(Retriever.open("index", device="cpu").search("Why do bees dance?")[0].text)
except ValueError as error:
    print(error)
print(json.dumps(said))
"""

DOWNLOAD = f"Downloading {NAME}, MB"


@pytest.fixture(scope="module")
def files(toy_folder: Path) -> dict[str, bytes]:
    """The files of a small model of sentence-transformers."""
    found = (path for path in toy_folder.rglob("*") if path.is_file())
    return {path.relative_to(toy_folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("own_cache", [False, True])
def test_an_embedder_is_downloaded_before_the_first_stage(
    files: dict[str, bytes], tmp_path: Path, own_cache: bool
) -> None:
    cache = {"SENTENCE_TRANSFORMERS_HOME": str(tmp_path / "own")} if own_cache else {}
    script = f"import os\nos.chdir({str(tmp_path)!r})\n{SCRIPT}"
    with fake_hub(files) as (address, handler):
        text, reports = run_with_hub(address, tmp_path / "hub", script, **cache)
        stages = [stage for stage, _, _ in json.loads(reports)]
        assert text == "Bees dance to tell each other where the flowers are."
        assert stages[0] == DOWNLOAD
        assert DOWNLOAD not in stages[stages.index("load") :]
        assert handler.downloaded().count("model.safetensors") == 1
        handler.requests.clear()
        text, reports = run_with_hub(address, tmp_path / "hub", script, **cache)
        assert handler.requests == []
        assert DOWNLOAD not in reports


PARTS = {"model-1.safetensors": b"a" * 3_000_000, "model-2.safetensors": b"b" * 2_500_000}
INDEX = {"weight_map": {"first": "model-1.safetensors", "second": "model-2.safetensors"}}
HUB_FILES = PARTS | {
    "config.json": b"{}",
    "model.safetensors.index.json": json.dumps(INDEX).encode(),
    "consolidated.safetensors": b"c" * 1000,
}

RESOLVING = """
import json, sys
from antiphon.accel import resolve_model
said = []
try:
    print(resolve_model("someone/model", progress=lambda *report: said.append(report)))
except ValueError as error:
    print(error)
print(json.dumps(said))
"""


@pytest.fixture
def hub() -> Iterator[tuple[str, type[FakeHub]]]:
    with fake_hub(HUB_FILES) as found:
        yield found


def resolve(address: str, cache: Path, prelude: str = "") -> tuple[str, list[tuple[str, int, int]]]:
    """Return the result or the error of `resolve_model`, and its progress reports, in a new process."""
    answer, reports = run_with_hub(address, cache, prelude + RESOLVING)
    return answer, [(stage, done, total) for stage, done, total in json.loads(reports)]


def test_the_parts_of_the_weights_are_downloaded_with_progress(hub: tuple[str, type[FakeHub]], tmp_path: Path) -> None:
    address, handler = hub
    answer, reports = resolve(address, tmp_path)
    assert answer == NAME
    assert {stage for stage, _, _ in reports} == {"Downloading someone/model, MB"}
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)
    assert reports[-1][1:] == (5, 5)
    assert {*handler.downloaded()} == {*PARTS, "model.safetensors.index.json"}  # not the same weights in one file
    handler.requests.clear()
    assert resolve(address, tmp_path)[1] == []
    assert handler.downloaded() == []


def test_after_an_interrupted_download_only_the_rest_is_fetched(hub: tuple[str, type[FakeHub]], tmp_path: Path) -> None:
    address, handler = hub
    handler.broken.add("model-2.safetensors")
    answer, _ = resolve(address, tmp_path)
    assert answer.startswith("The weights of 'someone/model' cannot be downloaded (")
    assert answer.endswith("What has arrived is kept: run the command again.")
    handler.broken.clear()
    handler.requests.clear()
    answer, reports = resolve(address, tmp_path)
    assert answer == NAME
    assert reports[-1][1:] == (2, 2)
    assert handler.downloaded() == ["model-2.safetensors"]
