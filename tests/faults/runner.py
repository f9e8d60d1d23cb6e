"""Runs tests in a separate process with one fault applied, and reports which tests fail."""

import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.catalogue import ROOT, faults
from tests.faults.import_hook import install

ENOUGH = 2
"""Failing test functions after which a run ends."""

LIMIT = 420
"""Maximum seconds of a run."""

LIBRARIES = (
    *(
        "torch",
        "transformers.generation",
        "transformers.models.llama.modeling_llama",
        "numpy",
        "openvino",
        "llguidance",
    ),
    *("fastapi", "uvicorn", "starlette.testclient", "httpx", "mcp.server", "openai", "typer"),
    *("langchain_core.vectorstores", "langchain_core.language_models", "llama_index.core", "hypothesis.strategies"),
)
"""Modules imported before the runs are forked; none of Antiphon, because the faults change its source."""


class FailedTests:
    """A pytest plugin that writes the failing tests into a file, one case for each test function."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._failed: dict[str, str] = {}

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip further cases of a function that has failed, and everything after enough failures."""
        if function_of(item.nodeid) in self._failed:
            pytest.skip("another case has failed")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failed test."""
        if report.failed:
            self._failed.setdefault(function_of(report.nodeid), report.nodeid)
            self._report.write_text(json.dumps(list(self._failed.values())), encoding="utf-8")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End the run after enough failing functions."""
        if len(self._failed) >= ENOUGH:
            pytest.exit("enough tests have failed", returncode=1)


def function_of(test: str) -> str:
    """Return the id of a test without its parameters."""
    return test.split("[")[0]


def failing_tests(fault: str, tests: Sequence[str]) -> list[str]:
    """Return up to `ENOUGH` of the tests that fail with a fault, each of another function.

    Args:
        fault: Name of the fault; empty: none.
        tests: Test files or ids of tests; those marked ``exhaustive`` are not run.

    Raises:
        RuntimeError: The tests could not be collected or took too long.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*LIBRARIES])
    with TemporaryDirectory() as folder:
        report, output = Path(folder, "failed.json"), Path(folder, "output.txt")
        process = context.Process(target=_run, args=(fault, tests, report, output))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
        failed: list[str] = json.loads(report.read_text(encoding="utf-8")) if report.exists() else []
        if not failed and process.exitcode != 0:
            shown = output.read_text(encoding="utf-8", errors="replace") if output.exists() else ""
            raise RuntimeError(f"The tests did not run ({process.exitcode}):\n{shown[-3000:]}")
        return failed


def _run(fault: str, tests: Sequence[str], report: Path, output: Path) -> None:
    """Run tests in this process with a fault, which also applies to the processes that they start."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.chdir(ROOT)
    os.environ["ANTIPHON_FAULT"] = fault
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(Path(__file__).parent / "startup")])
    if fault:
        install(faults()[fault])
    warning = "ignore::pytest.PytestAssertRewriteWarning"  # some plugins are imported before pytest starts
    options = ["-q", "-p", "no:cacheprovider", "--timeout=120", "--tb=line", "-W", warning]
    code = pytest.main([*options, *tests], plugins=[FailedTests(report)])
    sys.stdout.flush()
    os._exit(int(code))
