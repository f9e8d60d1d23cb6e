"""The first start of a model on OpenVINO as a program: what tests kill, starve and run side by side.

    python -m tests.accel.openvino.starting FOLDER REQUEST [--dies-at WHAT] [--largest BYTES] [--waits]

It prints ``stage N`` when a stage of the preparation begins, and the ids of the text last; where the model cannot be
started, it ends with the sentence that says why.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from argparse import ArgumentParser
from typing import Any

from antiphon.accel import LanguageModel

MEMORY = 2**22


def main() -> None:
    """Start the model, and say what it says."""
    parser = ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("request", type=json.loads)
    parser.add_argument("--dies-at", default="")
    parser.add_argument("--largest", type=int)
    parser.add_argument("--waits", action="store_true")
    given = parser.parse_args()
    if given.dies_at:
        _die_at(given.dies_at)
    if given.largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given.largest, given.largest))

    def report(stage: str, done: int, total: int) -> None:
        sys.audit("stage", f"{done}")
        _say(f"stage {done}")
        if given.waits and done == 0:
            sys.stdin.readline()

    try:
        model = LanguageModel.from_pretrained(given.folder, engine="openvino", memory=MEMORY, report=report)
    except ValueError as error:
        sys.exit(str(error))
    if model.engine.name != "openvino":
        sys.exit(f"it runs on {model.engine.name}")
    _say(json.dumps(model.generate(**given.request).tokens))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _die_at(what: str) -> None:
    """Be killed, as by kill -9, right before something is done: an audit event, and its first argument."""
    wanted = re.compile(what)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if arguments and wanted.search(f"{event} {arguments[0]}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


if __name__ == "__main__":
    main()
