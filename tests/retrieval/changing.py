"""What the killed processes do: build, add and remove. Run by test_changes, in a process of its own."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from antiphon.retrieval import index_passages, update_index
from tests.retrieval.test_changes import DIM, Given, passage, vector


def build(folder: Path) -> None:
    index_passages([passage(number) for number in range(600)], folder, Given(DIM), setting="compact")


def add(folder: Path) -> None:
    numbers = range(1000, 1300)  # so many that it is trained anew
    vectors = np.array([vector(number) for number in numbers])
    update_index(folder, Given(DIM), upsert=[passage(number) for number in numbers], vectors=vectors)


def remove(folder: Path) -> None:
    update_index(folder, Given(DIM), remove=[f"p{number}" for number in range(200)])


CHANGES: dict[str, Callable[[Path], None]] = {"build": build, "add": add, "remove": remove}
