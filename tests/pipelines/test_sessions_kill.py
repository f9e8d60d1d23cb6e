"""Eight processes write to one store and some are killed: acknowledged sessions survive, none is corrupt.

ANTIPHON_SESSIONS sets the number of sessions that each process writes.
"""

import os
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np

from antiphon.pipelines import SessionStore
from antiphon.retrieval import HashEmbedder

PROCESSES = 8
EACH = int(os.environ.get("ANTIPHON_SESSIONS", "30"))

# Prints the number of a session after `add` has returned.
WRITER = """
import sys
from antiphon.pipelines import SessionStore
from antiphon.retrieval import HashEmbedder
path, writer, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
store = SessionStore(path, namespace=f"tenant {writer % 2}", embedder=HashEmbedder(64), max_sessions=10**6)
for number in range(count):
    question = f"writer {writer} asks question {number}"
    store.add(question, f"{question}, answered. " * 100)
    print(number, flush=True)
"""


def write(writer: int, process: "subprocess.Popen[str]") -> int:
    """Return the number of acknowledged sessions of a writer; every second writer is killed while it works."""
    acknowledged = 0
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            assert int(line) == acknowledged
            acknowledged += 1
            if writer % 2 and acknowledged == EACH * (1 + writer) // 10:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == (-signal.SIGKILL if writer % 2 else 0)
    return acknowledged


def test_every_acknowledged_session_survives_and_none_is_corrupt(tmp_path: Path) -> None:
    path, embedder = tmp_path / "sessions.sqlite", HashEmbedder(64)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, str(writer), str(EACH)], stdout=subprocess.PIPE, text=True, env=environment)
        for writer in range(PROCESSES)
    ]
    with ThreadPoolExecutor(PROCESSES) as threads:
        acknowledged = list(threads.map(write, range(PROCESSES), writers))
    killed = acknowledged[1::2]
    assert acknowledged[::2] == [EACH] * 4
    assert all(0 < count < EACH for count in killed)
    store = SessionStore(path, namespace="tenant 1", embedder=embedder)  # a new writer can use it
    store.add("one more question", "one more answer")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma integrity_check").fetchone() == ("ok",)
        rows = connection.execute("select namespace, question, answer, vector from sessions").fetchall()
    there = {question: (namespace, answer, vector) for namespace, question, answer, vector in rows}
    for writer, count in enumerate(acknowledged):
        for number in range(count):
            assert there[f"writer {writer} asks question {number}"][0] == f"tenant {writer % 2}"
    assert len(there) <= 1 + sum(acknowledged) + len(killed)  # each killed writer may have stored one more
    del there["one more question"]
    for question, (_, answer, vector) in there.items():
        assert answer == f"{question}, answered. " * 100
        assert vector == embedder.embed_queries([question])[0].astype(np.float16).tobytes()
