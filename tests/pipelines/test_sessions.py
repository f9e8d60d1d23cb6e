"""Sessions: found by meaning, separate for tenants, limited, deleted for good; drafting does not change the text."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag, SessionStore
from antiphon.pipelines.request_plan import PROMPT_TAIL
from antiphon.retrieval import HashEmbedder, Retriever
from antiphon.retrieval.vector_index.flat import Vectors
from tests.accel.oracles import expect_plain_logits
from tests.pipelines.recording_drafter import RecordingBlend

EGGS = "How many eggs does a queen lay?"
PARAPHRASE = "How many eggs can a queen lay?"


def open_store(folder: Path, **options: Any) -> SessionStore:
    settings: dict[str, Any] = {"embedder": HashEmbedder(), "similarity": 0.6, **options}
    return SessionStore(folder / "store" / "sessions.sqlite", **settings)


def questions(store: SessionStore, question: str = "a b c d") -> list[str]:
    return [session.question for session in store.similar(question)]


def test_a_similar_question_finds_the_answer_and_a_different_one_does_not(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert store.similar(EGGS) == []
    store.add(EGGS, "Two thousand.")
    store.add("Is honey sweet?", "It is.")
    [session] = open_store(tmp_path).similar(PARAPHRASE)
    assert (session.question, session.answer) == (EGGS, "Two thousand.")
    assert 0.6 < session.similarity < 1
    assert open_store(tmp_path, similarity=0.99).similar(PARAPHRASE) == []
    assert open_store(tmp_path).similar(EGGS)[0].similarity == pytest.approx(1, abs=1e-3)


def test_a_new_answer_replaces_one_to_the_same_question(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add(EGGS, "One.")
    store.add(EGGS, "Two.")
    assert [session.answer for session in store.similar(EGGS)] == ["Two."]
    assert len(store) == 1


def test_namespaces_are_separate(tmp_path: Path) -> None:
    acme, other = open_store(tmp_path, namespace="acme", max_sessions=1), open_store(tmp_path, namespace="other")
    acme.add(EGGS, "Acme's secret.")
    assert other.similar(EGGS) == []
    other.add(EGGS, "Another's.")
    other.add(PARAPHRASE, "Another's too.")
    assert [session.answer for session in acme.similar(EGGS)] == ["Acme's secret."]
    assert (other.forget("Is honey sweet?"), other.clear()) == (False, 2)
    assert (len(acme), len(other)) == (1, 0)
    acme.add("Is honey sweet?", "It is.")
    assert len(acme) == 1


class InterruptedEmbedder(HashEmbedder):
    """An embedder that calls a function before it embeds."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Call the function, then embed."""
        self.action()
        return super().embed_queries(texts)


def test_a_reused_row_id_does_not_lead_to_another_namespace(tmp_path: Path) -> None:
    store, other = open_store(tmp_path, namespace="acme"), open_store(tmp_path, namespace="other")
    store.add(EGGS, "Two thousand.")

    def replace() -> None:
        store.forget(EGGS)
        with store._transaction() as connection:
            connection.execute("delete from sqlite_sequence")
        other.add(EGGS, "Another's.")

    def row() -> tuple[int, float]:
        with other._transaction(writes=False) as connection:
            found: tuple[int, float] = connection.execute("select id, used from sessions").fetchone()
        return found

    before = row()
    assert open_store(tmp_path, namespace="acme", embedder=InterruptedEmbedder(replace)).similar(EGGS) == []
    after = row()
    assert before[0] == after[0]
    open_store(tmp_path, namespace="acme")._use({after[0]: 1.0})
    assert row() == after


def test_the_least_recently_used_session_is_evicted(tmp_path: Path) -> None:
    store = open_store(tmp_path, max_sessions=2)
    store.add("a b c d", "1")
    store.add("p q r s", "2")
    assert questions(store, "a b c e") == ["a b c d"]  # now the most recently used one
    store.add("k l m n", "3")
    assert (questions(store, "a b c d"), questions(store, "p q r s")) == (["a b c d"], [])
    assert len(store) == 2


def test_sessions_older_than_max_age_are_neither_found_nor_kept(tmp_path: Path) -> None:
    open_store(tmp_path).add("a b c d", "1")
    store = open_store(tmp_path, max_age=0.05)
    time.sleep(0.06)
    assert questions(store) == []
    assert len(store) == 1
    store.add("p q r s", "2")
    assert len(store) == 1


def test_a_deleted_session_is_overwritten_on_disk(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.add("Who is the patient?", "It is Rumpelstiltskin. " * 400)
    store.add(EGGS, "Two thousand.")

    def is_on_disk(text: bytes) -> bool:
        return any(text in file.read_bytes() for file in (tmp_path / "store").iterdir())

    assert is_on_disk(b"Rumpelstiltskin")
    assert store.forget("Who is the patient?")
    assert not is_on_disk(b"Rumpelstiltskin")
    assert not is_on_disk(b"patient")
    assert is_on_disk(b"Two thousand")


def test_a_store_of_another_embedder_is_refused_with_both_names(tmp_path: Path) -> None:
    open_store(tmp_path).add(EGGS, "Two thousand.")
    with pytest.raises(ValueError, match=r"sessions.sqlite was made with the embedder 'hash:words:256', .*words:64'"):
        SessionStore(tmp_path / "store" / "sessions.sqlite", embedder=HashEmbedder(64))


def test_files_of_other_programs_are_refused_and_unchanged(tmp_path: Path) -> None:
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.sqlite"
    text.write_text("Buy milk. " * 1000)
    with pytest.raises(ValueError, match=r"notes.txt is not an SQLite file"):
        SessionStore(text, embedder=HashEmbedder())
    connection = sqlite3.connect(foreign)
    connection.execute("create table mine (x)")
    connection.close()
    before = foreign.read_bytes()
    with pytest.raises(ValueError, match=r"foreign.sqlite is an SQLite file of another program"):
        SessionStore(foreign, embedder=HashEmbedder())
    with pytest.raises(OSError, match="cannot be opened: unable to open database file"):
        SessionStore(tmp_path, embedder=HashEmbedder())
    assert foreign.read_bytes() == before
    assert text.read_text() == "Buy milk. " * 1000


def test_an_earlier_answer_is_drafted_from_without_changing_the_text(
    retriever: Retriever, typist: LanguageModel, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    rag = Rag(retriever, typist, k=1, sessions=store)
    options: dict[str, Any] = {"max_new_tokens": 40, "num_draft_tokens": 32, "recycling": False}
    without = rag.ask(EGGS, sessions=False, **options)
    assert len(store) == 0
    empty = rag.ask(EGGS, **options)
    recorder = RecordingBlend()
    stream = rag.stream(PARAPHRASE, drafter=lambda: recorder, **options)
    warm = rag.ask(EGGS, **options)
    assert without.text == empty.text == warm.text
    assert without.steps.steps == empty.steps.steps > 2 * warm.steps.steps
    list(stream)
    text = [*recorder.prompt, *stream.completion.tokens]
    plain = rag.ask(PARAPHRASE, drafter="nothing", sessions=False, max_new_tokens=40)
    assert stream.answer.text == plain.text
    expect_plain_logits(typist.model, text, recorder.records)
    said = typist.tokenizer.encode(empty.text + "<eos>", add_special_tokens=False)
    assert recorder.references[1:] == [[*recorder.prompt[-PROMPT_TAIL:], *said]]  # after the passages


def test_a_cancelled_answer_is_not_stored(retriever: Retriever, tiny: LanguageModel, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with Rag(retriever, tiny, sessions=store).stream(EGGS) as stream:
        next(stream)
    assert len(store) == 0


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk I/O error"), PermissionError("not your file")])
def test_a_broken_store_does_not_lose_the_answer(
    error: Exception, retriever: Retriever, tiny: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: bool) -> None:
        raise error

    store = open_store(tmp_path)
    rag = Rag(retriever, tiny, sessions=store)
    without = rag.ask(EGGS, sessions=False, max_new_tokens=5)
    store.add(EGGS, without.text)
    monkeypatch.setattr(store, "_transaction", fail)
    with pytest.warns(UserWarning, match=f"The sessions were not searched: {error}"):
        stream = rag.stream(EGGS, max_new_tokens=5)
    with pytest.warns(UserWarning, match=f"The answer was not kept as a session: {error}"):
        list(stream)
    assert stream.answer.text == without.text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_the_files_of_a_store_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SessionStore(tmp_path / "x.sqlite", embedder=HashEmbedder())
        with store._transaction():
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"x.sqlite", "x.sqlite-wal", "x.sqlite.lock"} <= set(modes)
    assert set(modes.values()) == {0o600}


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


def write(writer: int, process: subprocess.Popen[str]) -> int:
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
    command = [sys.executable, "-c", WRITER, str(path)]
    writers = [
        subprocess.Popen([*command, str(writer), str(EACH)], stdout=subprocess.PIPE, text=True)
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
