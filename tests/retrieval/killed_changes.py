"""The changes that `test_index_changes` kills: build, add and remove. They run in a separate process."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from antiphon.retrieval import index_passages, update_index
from tests.retrieval.test_index_changes import DIM, Given, passage, vector


def build(folder: Path) -> None:
    index_passages([passage(number) for number in range(600)], folder, Given(DIM), setting="compact")


def add(folder: Path) -> None:
    numbers = range(1000, 1300)  # enough passages for more inverted lists, so that the index is trained again
    vectors = np.array([vector(number) for number in numbers])
    update_index(folder, Given(DIM), upsert=[passage(number) for number in numbers], vectors=vectors)


def remove(folder: Path) -> None:
    update_index(folder, Given(DIM), remove=[f"p{number}" for number in range(200)])


CHANGES: dict[str, Callable[[Path], None]] = {"build": build, "add": add, "remove": remove}
