"""Commands show their current stage until the first output, and then the time that the user has waited."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time

import pytest
from rich.console import Console

from antiphon.pipelines.cli import console
from antiphon.pipelines.cli.timing import Stopwatch


def test_a_stopwatch_counts_from_the_start_of_the_command() -> None:
    stopwatch = Stopwatch(before=100.0)
    stopwatch.mark_first_output()
    time.sleep(0.2)
    stopwatch.mark_first_output()
    first, total = map(float, re.findall(r"[\d.]+(?= s)", stopwatch.describe()))
    assert 100 <= first < 100.15
    assert total >= first + 0.1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell the start of a process in /proc")
def test_the_start_of_python_is_counted() -> None:
    script = (
        "import time; time.sleep(0.5)\n"
        "from antiphon.pipelines.cli.timing import seconds_since_process_start; print(seconds_since_process_start())"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    began = time.perf_counter()
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    tick = 1 / os.sysconf("SC_CLK_TCK")  # the system rounds the start down
    assert 0.5 <= float(run.stdout) <= time.perf_counter() - began + tick


def test_the_status_is_a_line_if_standard_error_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Console(file=io.StringIO())
    monkeypatch.setattr(console, "err", plain)
    with console.status("Opening my [index]"):
        assert plain.file.getvalue() == "Opening my [index] …\n"  # type: ignore[attr-defined]
