"""First starts of a model on OpenVINO, each a process of its own: what tests kill, starve and run side by side.

    python -m tests.accel.openvino.start_process

Libraries are loaded once, but for OpenVINO, which begins a thread, and threads are not forked. Then every line of the
input, the fields of a `Start` as JSON, is a start in a process of its own, its output a connection to the ``port``.
It prints ``stage N`` when a stage of the preparation begins, and the ids of the text last; where the model cannot be
started, it ends with the sentence that says why. The last line of all is its code.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from transformers import LlamaForCausalLM  # noqa: F401

import antiphon.accel.engines.openvino.loader
import antiphon.accel.generate  # noqa: F401
from antiphon.accel import LanguageModel

MEMORY = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start: of what, and what happens to it.

    ``mount`` is run before it. Killed it is right before what ``dies_at`` is found in is done: an audit event, and its
    first argument. No file that it writes is larger than ``largest`` bytes. Where it ``waits``, it goes on from stage 0
    when a line comes in.
    """

    port: int
    error: str
    environment: dict[str, str]
    folder: str
    request: dict[str, Any]
    mount: str = ""
    dies_at: str = ""
    largest: int | None = None
    waits: bool = False


def main() -> None:
    """Fork for every line: a process that waits for the start and says how it ended, and the start itself."""
    while line := sys.stdin.readline():
        if os.fork() == 0:
            break
    else:
        return
    start = Start(**json.loads(line))
    with socket.create_connection(("127.0.0.1", start.port)) as connection:
        if child := os.fork():
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            connection.sendall(f"{code}\n".encode())
            return
        os.dup2(connection.fileno(), sys.stdout.fileno())
        with Path(start.error).open("w") as error:
            os.dup2(error.fileno(), sys.stderr.fileno())
        _begin(start, connection.makefile())


def _begin(start: Start, told: TextIO) -> None:
    """Start the model, and say what it says."""
    os.environ.update(start.environment)
    tempfile.tempdir = None  # it was chosen when libraries were loaded
    if start.mount:
        subprocess.run(["sh", "-c", start.mount], check=True)
    if start.dies_at:
        _die_at(start.dies_at)
    if start.largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (start.largest, start.largest))

    def report(stage: str, done: int, total: int) -> None:
        sys.audit("stage", f"{done}")
        _say(f"stage {done}")
        if start.waits and done == 0:
            told.readline()

    try:
        model = LanguageModel.from_pretrained(start.folder, engine="openvino", memory=MEMORY, report=report)
    except ValueError as error:
        sys.exit(str(error))
    if model.engine.name != "openvino":
        sys.exit(f"it runs on {model.engine.name}")
    _say(json.dumps(model.generate(**start.request).tokens))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _die_at(what: str) -> None:
    """Be killed, as by kill -9, right before something is done."""
    wanted = re.compile(what)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if arguments and wanted.search(f"{event} {arguments[0]}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    main()
