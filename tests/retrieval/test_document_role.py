"""Records such as changelogs come after the manual, unless the question may be about changes."""

from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, Passage, Retriever, index_passages
from antiphon.retrieval.document_role import (
    asks_about_changes,
    exact_tokens_first,
    is_record,
    records_last,
)
from antiphon.retrieval.keywords import exact_tokens

RECORDS = (
    *("CHANGES.rst", "docs/changelog.md", "CHANGELOG", "doc/NEWS.Debian", "docs/release-notes.md", "HISTORY.rst"),
    *("docs/releases/3.1.md", "docs/whats_new.rst", "changes-2.0.txt", "tests/wax.py", "test_wax.py", "issues/1.md"),
)
MANUALS = (
    *("docs/changing.md", "newsletter.md", "history.md", "testing.md", "docs/test-bench.md", "releasing.md"),
    *("handbook/exchange.md", "latest.txt", "contests.txt", "reissue.txt"),
)


@pytest.mark.parametrize("source", [*RECORDS, *MANUALS])
def test_a_changelog_an_issue_and_a_test_are_records_and_a_manual_is_none(source: str) -> None:
    assert is_record(Passage.at(source, 0, "Wax melts.")) == (source in RECORDS)


def test_a_record_is_known_by_its_outermost_heading() -> None:
    assert is_record(Passage.at("docs/a.html", 0, "Wax.", {"title": "Changelog > 3.1"}))
    assert is_record(Passage.at("docs/a.html", 0, "Wax.", {"title": "Release notes"}))


@pytest.mark.parametrize("question", ["What changed in wax?", "Which version added it?", "is 3.1 out", "Was it fixed?"])
def test_questions_about_changes_are_recognised(question: str) -> None:
    assert asks_about_changes(question)
    assert not asks_about_changes("How do I melt wax?")


def test_records_come_last_and_take_at_most_half_of_the_places() -> None:
    manual = [Passage.at("manual.md", number, f"Manual {number}.") for number in range(3)]
    record = [Passage.at("CHANGES.md", number, f"Record {number}.") for number in range(4)]
    ranked = [record[0], manual[0], record[1], record[2], record[3], manual[1], manual[2]]
    assert records_last("How?", ranked, 5)[:5] == [*manual, *record[:2]]
    assert records_last("How?", ranked, 1)[:1] == manual[:1]
    assert records_last("How?", record, 3)[:3] == record[:3]
    assert records_last("What changed?", ranked, 5) == ranked
    assert sorted(records_last("How?", ranked, 2), key=ranked.index) == ranked


def test_the_manual_is_found_before_the_changelog(tmp_path: Path) -> None:
    texts = [("CHANGES.rst", "Melt wax: melt wax slowly."), ("manual.rst", "Melt wax slowly in a pot over water.")]
    index_passages([Passage.at(source, 0, text) for source, text in texts], tmp_path / "index", HashEmbedder())
    retriever = Retriever.open(tmp_path / "index", reranker=None)
    assert [each.source for each in retriever.search("melt wax", 2)] == ["manual.rst", "CHANGES.rst"]
    assert retriever.search("what changed: melt wax slowly", 2)[0].source == "CHANGES.rst"


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("When was 4.3 released?", "Version 4.3 (19 Jan 2020)"),
        ("What does filter_by_level do?", "Use stdlib.filter_by_level here."),
    ],
)
def test_passages_with_the_tokens_of_the_question_come_first(question: str, text: str) -> None:
    other = "Version 14.3.1 and 4.30; filter_by_levels, --no-cache-directory, os.path.joined and v2.4.3.1"
    passages = [
        Passage.at("a.md", 0, other),
        Passage.at("b.md", 0, "Below.", {"title": text}),
        Passage.at("c.md", 0, text),
    ]
    assert [each.source for each in exact_tokens_first(question, passages)] == ["c.md", "b.md", "a.md"]
    assert exact_tokens_first("What is well-known?", passages) == passages


def test_names_and_questions_with_long_numbers_and_words_are_read_in_linear_time() -> None:
    assert not is_record(Passage.at("a.md", 0, "Wax melts.", {"title": f"Test {'1' * 10_000} of wax"}))
    assert exact_tokens(f"{'a' * 100_000} {'1' * 100_000} 3.1.0") == ["3.1.0"]
