"""An environment in which the Python processes that tests start find the modules of this one."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module", autouse=True)
def _child_processes_find_our_modules() -> Iterator[None]:
    """Put the repository and the folders on this process' import path into PYTHONPATH."""
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")  # a run with a fault names its start-up file there
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path, before]))
        yield
