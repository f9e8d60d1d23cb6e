"""Loads a model on OpenVINO for the first time, each time in a new process that tests can kill or run out of disk.

    python -m tests.accel.openvino.start_process

This server process imports the libraries once, except OpenVINO, which starts a thread, and threads do not survive a
fork. For every line of its input, the fields of a `Start` as JSON, it forks a process that loads the model.

That process writes to a connection to ``port``: ``stage N`` when a stage of the preparation begins, and finally the
token ids of the answer. If the model cannot be loaded, it exits with the reason. The last line is its exit code.
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
    """One loading of a model.

    Attributes:
        port: Local port to connect to for output.
        error: File for standard error.
        environment: Additional environment variables.
        folder: Folder of the model.
        request: Arguments of `LanguageModel.generate`.
        mount: Shell command to run first.
        dies_at: Regular expression of an audit event and its first argument; the process is killed right before it.
        max_file_bytes: Maximum size of a written file, in bytes.
        waits: Whether to wait at stage 0 until a line comes in.
    """

    port: int
    error: str
    environment: dict[str, str]
    folder: str
    request: dict[str, Any]
    mount: str = ""
    dies_at: str = ""
    max_file_bytes: int | None = None
    waits: bool = False


def main() -> None:
    """Fork two processes for every line: one loads the model, the other waits for it and sends its exit code."""
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
        _load(start, connection.makefile())


def _load(start: Start, commands: TextIO) -> None:
    """Load the model, and print the tokens of its answer."""
    os.environ.update(start.environment)
    tempfile.tempdir = None  # it was set from the old environment
    if start.mount:
        subprocess.run(["sh", "-c", start.mount], check=True)
    if start.dies_at:
        _die_at(start.dies_at)
    if start.max_file_bytes is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (start.max_file_bytes, start.max_file_bytes))

    def report(stage: str, done: int, total: int) -> None:
        sys.audit("stage", f"{done}")
        _print(f"stage {done}")
        if start.waits and done == 0:
            commands.readline()

    try:
        model = LanguageModel.from_pretrained(start.folder, engine="openvino", memory=MEMORY, report=report)
    except ValueError as error:
        sys.exit(str(error))
    if model.engine.name != "openvino":
        sys.exit(f"it runs on {model.engine.name}")
    _print(json.dumps(model.generate(**start.request).tokens))


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _die_at(pattern: str) -> None:
    """Kill this process, as kill -9 does, right before an audit event that matches a regular expression."""
    wanted = re.compile(pattern)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if arguments and wanted.search(f"{event} {arguments[0]}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    main()
