"""Importing the package is cheap, and every exported name exists."""

import subprocess
import sys

HEAVY = ["torch", "transformers", "sentence_transformers", "faiss", "selectolax", "docutils", "pypdfium2", "numpy"]


def loaded_after(script: str) -> list[str]:
    command = [sys.executable, "-c", f"{script}\nimport sys; print(*[name for name in {HEAVY} if name in sys.modules])"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    return run.stdout.split()


def test_importing_and_searching_without_a_model_import_nothing_heavy() -> None:
    assert loaded_after("import antiphon.retrieval") == []
    assert loaded_after("from antiphon.retrieval import Retriever, build_index, HashEmbedder, FaissIndex") == ["numpy"]
    script = """
import tempfile, pathlib
from antiphon.retrieval import Retriever, build_index
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder)
    (path / "a.txt").write_text("Some text.")
    build_index([path / "a.txt"], path / "index", embedder="hash")
    assert Retriever.open(path / "index").search("text")
"""
    assert loaded_after(script) == ["numpy"]
