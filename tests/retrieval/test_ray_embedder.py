"""Ray workers compute the same vectors as the plain embedder, in the order of the texts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from antiphon.retrieval import RayEmbedder

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
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-c", SCRIPT, f"{tmp_path}/index"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "Colony 31 has 3 queens."


def test_without_ray_the_error_has_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.data", None)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'antiphon\[ray\]'"):
        RayEmbedder("hash")
