"""`build_index` downloads the weights of the embedder, and of the reranker that questions will need, with progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fake_hub import NAME, fake_hub, run_with_hub

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

IN_A_FOLDER = "import os\nos.chdir({!r})\n"
DOWNLOAD = f"Downloading {NAME}, MB"


@pytest.fixture(scope="module")
def files(toy_folder: Path) -> dict[str, bytes]:
    """The files of a small model of sentence-transformers."""
    found = (path for path in toy_folder.rglob("*") if path.is_file())
    return {path.relative_to(toy_folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.slow
@pytest.mark.parametrize("own_cache", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_an_embedder_is_downloaded_before_the_first_stage(
    files: dict[str, bytes], tmp_path: Path, own_cache: bool
) -> None:
    cache = {"SENTENCE_TRANSFORMERS_HOME": str(tmp_path / "own")} if own_cache else {}
    script = IN_A_FOLDER.format(str(tmp_path)) + SCRIPT
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


@pytest.mark.exhaustive
def test_a_model_that_the_hub_does_not_have_is_named(tmp_path: Path) -> None:
    script = IN_A_FOLDER.format(str(tmp_path)) + SCRIPT
    with fake_hub({}) as (address, _):
        error, _ = run_with_hub(address, tmp_path / "hub", script)
        assert error.startswith(f"The embedder '{NAME}' cannot be loaded from the hub or its cache; check the name")
