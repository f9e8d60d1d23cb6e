"""Fixtures of all tests: a separate cache with the bundled models, one thread, passages and an index of them."""

import asyncio
import gc
import logging
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import hypothesis
import pytest
import torch
from platformdirs import user_cache_dir

from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages

TEXTS = (
    "Bees live in colonies of up to sixty thousand, and each colony has one queen.",
    "Honey keeps for years because it holds little water.",
    "A queen lays as many as two thousand eggs on a summer's day.",
)

signal.signal(
    signal.SIGINT, signal.default_int_handler
)  # ignored in a shell's background, where tests of Ctrl-C wait for it

# A busy machine is no error, and every run draws the same examples; `pytest --hypothesis-profile random` draws others.
hypothesis.settings.register_profile("same examples", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None)
hypothesis.settings.load_profile("same examples")

SLOW_FILES = ("test_notebooks.py", "test_demo.py", "test_server.py", "test_wheel.py")
"""Files with few and slow tests. Each runs in one worker, so they start first and no worker is idle at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of slow files first."""
    items.sort(key=lambda item: item.path.name not in SLOW_FILES)


def pytest_collection_finish() -> None:
    """Exempt the modules and tests, some millions of objects, from later garbage collections."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_as_at_the_start() -> None:
    """Enable the loggers of Antiphon, which a library that an earlier test used may have turned off.

    The level of the root logger is Python's default: a higher one would hide warnings.
    """
    logging.root.setLevel(logging.WARNING)
    for handler in logging.root.handlers:  # pytest's, which live as long as the session
        handler.setLevel(logging.NOTSET)
        handler.filters.clear()
    for name in ("antiphon", *(each for each in logging.root.manager.loggerDict if each.startswith("antiphon."))):
        logger = logging.getLogger(name)
        logger.disabled, logger.propagate = False, True
        logger.setLevel(logging.NOTSET)
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[None]:
    """Give all workers one common cache; the bundled models stay in the user's cache."""
    base = tmp_path_factory.getbasetemp()
    users, own = Path(user_cache_dir("antiphon")), (base if worker_id == "master" else base.parent) / "cache"
    (own / "antiphon").mkdir(parents=True, exist_ok=True)
    for name in ("models", "demo-index"):
        (users / name).mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # another worker was first
            (own / "antiphon" / name).symlink_to(users / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(own))
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Compute with one thread for each worker, also in the processes that tests start."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture
def _event_loop() -> Iterator[None]:
    """LlamaIndex creates an event loop and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.close()
    asyncio.set_event_loop(None)


@pytest.fixture(scope="session")
def passages() -> list[Passage]:
    starts = (0, 100, 200)
    return [Passage.at("bees.txt", start, text) for start, text in zip(starts, TEXTS, strict=True)]


@pytest.fixture(scope="session")
def index_folder(tmp_path_factory: pytest.TempPathFactory, passages: list[Passage]) -> Path:
    folder = tmp_path_factory.mktemp("bees") / "index"
    index_passages(passages, folder, HashEmbedder())
    return folder


@pytest.fixture(scope="session")
def retriever(index_folder: Path) -> Retriever:
    return Retriever.open(index_folder)
