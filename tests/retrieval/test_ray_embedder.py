"""Ray workers compute the same vectors as the plain embedder, in the order of the texts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from antiphon.retrieval import RayEmbedder, load_embedder

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from antiphon.retrieval import HashEmbedder, Passage, RayEmbedder, Retriever, index_passages

texts = [f"Colony {number} has {number % 7} queens." for number in range(50)]
spread = RayEmbedder("hash", workers=2, batch=8)
assert np.array_equal(spread.embed_documents(texts), HashEmbedder().embed_documents(texts))
folder = sys.argv[1]
index_passages([Passage.at("bees.txt", 0, text) for text in texts], folder, spread)
print(Retriever.open(folder).search(texts[31], k=1)[0].text)
"""


def test_workers_compute_the_vectors_of_the_plain_embedder(tmp_path: Path) -> None:
    pytest.importorskip("ray.data", reason="pip install -e '.[ray]'")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", SCRIPT, f"{tmp_path}/index"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "Colony 31 has 3 queens."


def test_few_texts_and_questions_are_embedded_in_this_process() -> None:
    pytest.importorskip("ray.data", reason="pip install -e '.[ray]'")
    spread, plain = RayEmbedder("hash", batch=8), load_embedder("hash")
    assert (spread.name, spread.dim, spread.fingerprint) == (plain.name, plain.dim, plain.fingerprint)
    assert spread.count_tokens("one two") == 2
    for embed in ("embed_documents", "embed_queries"):
        assert np.array_equal(getattr(spread, embed)(["one", "two"]), getattr(plain, embed)(["one", "two"]))


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="workers is 0 and batch 256; 1 is the least"):
        RayEmbedder("hash", workers=0)
    with pytest.raises(ValueError, match="workers is None and batch 0; 1 is the least"):
        RayEmbedder("hash", batch=0)


def test_without_ray_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.data", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[ray\]'"):
        RayEmbedder("hash")
