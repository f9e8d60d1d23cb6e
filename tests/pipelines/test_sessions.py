"""Cached sessions: found by meaning, one tenant's alone, bounded, forgotten for good; and drafts of the same text."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel import LanguageModel
from antiphon.pipelines import Rag, SessionStore, database
from antiphon.pipelines.references import PROMPT_TAIL
from antiphon.retrieval import HashEmbedder, Retriever
from antiphon.retrieval.vector_index.flat import Vectors
from tests.accel.oracles import expect_plain_logits
from tests.pipelines.listening import Listening

EGGS = "How many eggs does a queen lay?"
PARAPHRASE = "How many eggs can a queen lay?"


def opened(folder: Path, **options: Any) -> SessionStore:
    settings: dict[str, Any] = {"embedder": HashEmbedder(), "similarity": 0.6, **options}
    return SessionStore(folder / "store" / "sessions.sqlite", **settings)


def questions(store: SessionStore, question: str = "a b c d") -> list[str]:
    return [session.question for session in store.similar(question)]


def test_a_similar_question_finds_the_answer_and_another_does_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.similar(EGGS) == []
    store.add(EGGS, "Two thousand.")
    store.add("Is honey sweet?", "It is.")
    [session] = opened(tmp_path).similar(PARAPHRASE)
    assert (session.question, session.answer) == (EGGS, "Two thousand.")
    assert 0.6 < session.similarity < 1
    assert opened(tmp_path, similarity=0.99).similar(PARAPHRASE) == []
    assert opened(tmp_path).similar(EGGS)[0].similarity == pytest.approx(1, abs=1e-3)


def test_the_most_similar_come_first_and_are_at_most_k(tmp_path: Path) -> None:
    store = opened(tmp_path, k=2, similarity=0.0)
    for question in ("a x y z", "a b c d", "a b c z"):
        store.add(question, "answer")
    assert questions(store) == ["a b c d", "a b c z"]


def test_of_an_equal_question_the_latest_answer_is_kept(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(EGGS, "One.")
    store.add(EGGS, "Two.")
    assert [session.answer for session in store.similar(EGGS)] == ["Two."]
    assert len(store) == 1


def test_a_namespace_never_meets_another(tmp_path: Path) -> None:
    acme, other = opened(tmp_path, namespace="acme", max_sessions=1), opened(tmp_path, namespace="other")
    acme.add(EGGS, "Acme's secret.")
    assert other.similar(EGGS) == []
    other.add(EGGS, "Another's.")
    other.add(PARAPHRASE, "Another's too.")
    assert [session.answer for session in acme.similar(EGGS)] == ["Acme's secret."]
    assert (other.forget("Is honey sweet?"), other.clear()) == (False, 2)
    assert (len(acme), len(other)) == (1, 0)
    acme.add("Is honey sweet?", "It is.")
    assert len(acme) == 1


class Interrupted(HashEmbedder):
    """Something happens whenever it is about to embed."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__()
        self.happens = happens

    def embed_queries(self, texts: Sequence[str]) -> Vectors:
        """Of a `HashEmbedder`, after it has happened."""
        self.happens()
        return super().embed_queries(texts)


def test_what_takes_a_forgotten_sessions_place_is_not_found_for_it(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(EGGS, "Two thousand.")

    def replace() -> None:
        store.forget(EGGS)
        store.add("Is honey sweet?", "It is.")

    assert opened(tmp_path, embedder=Interrupted(replace)).similar(EGGS) == []


def test_not_even_a_number_that_was_given_anew_leads_to_another_namespace(tmp_path: Path) -> None:
    store, other = opened(tmp_path, namespace="acme"), opened(tmp_path, namespace="other")
    store.add(EGGS, "Two thousand.")

    def replace() -> None:
        store.forget(EGGS)
        with store._database.transaction() as connection:
            connection.execute("delete from sqlite_sequence")
        other.add(EGGS, "Another's.")

    def row() -> tuple[int, float]:
        with other._database.transaction(writes=False) as connection:
            found: tuple[int, float] = connection.execute("select id, used from sessions").fetchone()
        return found

    before = row()
    assert opened(tmp_path, namespace="acme", embedder=Interrupted(replace)).similar(EGGS) == []
    after = row()
    assert before[0] == after[0]
    opened(tmp_path, namespace="acme")._use({after[0]: 1.0})
    assert row() == after


def test_what_was_used_the_longest_ago_makes_way(tmp_path: Path) -> None:
    store = opened(tmp_path, max_sessions=2)
    store.add("a b c d", "1")
    store.add("p q r s", "2")
    assert questions(store, "a b c e") == ["a b c d"]  # used, and so newer than the other
    store.add("k l m n", "3")
    assert (questions(store, "a b c d"), questions(store, "p q r s")) == (["a b c d"], [])
    assert len(store) == 2


def test_what_is_too_old_is_neither_found_nor_kept(tmp_path: Path) -> None:
    opened(tmp_path).add("a b c d", "1")
    store = opened(tmp_path, max_age=0.05)
    time.sleep(0.06)
    assert questions(store) == []
    assert len(store) == 1
    store.add("p q r s", "2")
    assert len(store) == 1


def test_nothing_of_what_is_forgotten_stays_on_the_disk(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add("Who is the patient?", "It is Rumpelstiltskin. " * 400)
    store.add(EGGS, "Two thousand.")

    def stands(text: bytes) -> bool:
        return any(text in file.read_bytes() for file in (tmp_path / "store").iterdir())

    assert stands(b"Rumpelstiltskin")
    assert store.forget("Who is the patient?")
    assert not stands(b"Rumpelstiltskin")
    assert not stands(b"patient")
    assert stands(b"Two thousand")


def test_whoever_forgets_is_warned_where_a_reader_keeps_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAIT", 0.05)
    store, other = opened(tmp_path), opened(tmp_path)
    store.add(EGGS, "Two thousand.")
    with other._database.transaction(writes=False) as reading:
        reading.execute("select * from sessions").fetchall()
        with pytest.warns(UserWarning, match=r"may still stand in the log beside .*sessions.sqlite"):
            assert store.forget(EGGS)
    assert store.clear() == 0  # and no warning


def test_a_transaction_that_cannot_be_committed_is_no_obstacle_to_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store._database._connection.execute("pragma foreign_keys = on")
    with store._database.transaction() as connection:
        connection.execute("create table a (x integer primary key)")
        connection.execute("create table b (x references a deferrable initially deferred)")
    with pytest.raises(sqlite3.IntegrityError), store._database.transaction() as connection:
        connection.execute("insert into b values (1)")
    with pytest.raises(sqlite3.IntegrityError), store._database.transaction() as connection:
        connection.execute("insert or rollback into facts values ('format', '')")
    store.add(EGGS, "Two thousand.")
    assert len(store) == 1


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = opened(tmp_path, k=1)

    def use(number: int) -> str:
        store.add(f"question number{number}", f"answer {number}")
        return store.similar(f"question number{number}")[0].answer

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(use, range(40))) == [f"answer {number}" for number in range(40)]
    assert len(store) == 40


def test_a_thread_waits_until_another_has_done_all_or_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    with ThreadPoolExecutor() as threads:
        with store._database.transaction():
            count = threads.submit(len, store)
            time.sleep(0.1)
            assert not count.done()
        assert count.result() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_needs_a_store_of_its_own(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.add(EGGS, "One.")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for use in (store.clear, lambda: store.similar(EGGS), store._database.shred):
                with pytest.raises(
                    RuntimeError, match=rf"opened in process {os.getppid()}, and this is .*{os.getpid()}"
                ):
                    use()
            store.close()
            store._database._connection.execute("select 1")  # is still open
            opened(tmp_path).add(PARAPHRASE, "Two.")
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(store) == 2


def test_another_embedders_store_is_refused_with_both_names(tmp_path: Path) -> None:
    opened(tmp_path).add(EGGS, "Two thousand.")
    with pytest.raises(ValueError, match=r"sessions.sqlite was made with the embedder 'hash:words:256', .*words:64'"):
        SessionStore(tmp_path / "store" / "sessions.sqlite", embedder=HashEmbedder(64))


def test_another_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    text, foreign = tmp_path / "notes.txt", tmp_path / "foreign.sqlite"
    text.write_text("Buy milk. " * 1000)
    with pytest.raises(ValueError, match=r"notes.txt is not a file that SQLite reads"):
        SessionStore(text, embedder=HashEmbedder())
    connection = sqlite3.connect(foreign)
    connection.execute("create table mine (x)")
    connection.close()
    before = foreign.read_bytes()
    with pytest.raises(ValueError, match=r"foreign.sqlite is an SQLite file of something else"):
        SessionStore(foreign, embedder=HashEmbedder())
    with pytest.raises(OSError, match="cannot be opened: unable to open database file"):
        SessionStore(tmp_path, embedder=HashEmbedder())
    assert foreign.read_bytes() == before
    assert text.read_text() == "Buy milk. " * 1000


def test_numbers_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_sessions is 0; a store of sessions needs at least 1"):
        opened(tmp_path, max_sessions=0)
    with pytest.raises(ValueError, match="k is 0"):
        opened(tmp_path, k=0)
    with pytest.raises(ValueError, match="max_age is 0"):
        opened(tmp_path, max_age=0)


def test_an_earlier_answer_is_drafted_from_and_changes_no_word(
    retriever: Retriever, typist: LanguageModel, tmp_path: Path
) -> None:
    store = opened(tmp_path)
    rag = Rag(retriever, typist, k=1, sessions=store)
    options: dict[str, Any] = {"max_new_tokens": 40, "num_draft_tokens": 32, "recycling": False}
    without = rag.ask(EGGS, sessions=False, **options)
    assert len(store) == 0
    empty = rag.ask(EGGS, **options)
    recorder = Listening()
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
    assert recorder.references[1:] == [[*recorder.prompt[-PROMPT_TAIL:], *said]]  # after those of the passages


def test_an_answer_that_was_cancelled_is_not_kept(retriever: Retriever, tiny: LanguageModel, tmp_path: Path) -> None:
    store = opened(tmp_path)
    with Rag(retriever, tiny, sessions=store).stream(EGGS) as stream:
        next(stream)
    assert len(store) == 0


@pytest.mark.parametrize("error", [sqlite3.OperationalError("disk I/O error"), PermissionError("not your file")])
def test_an_answer_is_not_lost_where_the_store_is_broken(
    error: Exception, retriever: Retriever, tiny: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    store = opened(tmp_path)
    rag = Rag(retriever, tiny, sessions=store)
    without = rag.ask(EGGS, sessions=False, max_new_tokens=5)
    store.add(EGGS, without.text)
    monkeypatch.setattr(store._database, "_turn", fail)
    with pytest.warns(UserWarning, match=f"The sessions were not searched: {error}"):
        stream = rag.stream(EGGS, max_new_tokens=5)
    with pytest.warns(UserWarning, match=f"The answer was not kept as a session: {error}"):
        list(stream)
    assert stream.answer.text == without.text


def test_an_answer_is_not_lost_where_it_cannot_be_kept(
    retriever: Retriever, tiny: LanguageModel, tmp_path: Path
) -> None:
    store = opened(tmp_path)
    stream = Rag(retriever, tiny, sessions=store).stream(EGGS, max_new_tokens=5)
    store.close()
    with pytest.warns(UserWarning, match="The answer was not kept as a session: Cannot operate on a closed database"):
        list(stream)
    assert stream.answer.usage.completion_tokens == 5


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_of_sessions_is_its_owners_alone_with_all_that_stands_beside_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = SessionStore(tmp_path / "x.sqlite", embedder=HashEmbedder())
        store.add("Who?", "The queen.")
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert {"x.sqlite", "x.sqlite-wal", "x.sqlite-turn"} <= set(modes)
    assert set(modes.values()) == {0o600}
