"""Chunking: spans are exact, limits hold, and no text is lost."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.retrieval import Document, HashEmbedder, Heading, Passage, chunk_document
from antiphon.retrieval.block import BlockKind, Markup
from antiphon.retrieval.formats.markup import numbered_headings
from antiphon.retrieval.segmentation import blocks, code_lines, sentences, table_rows

count = HashEmbedder().count_tokens

PIECES = st.sampled_from(
    [
        *("Word", "a", "the end.", "Is it?", "- item", "1. one", "Dr. Who", "e.g. this", "x" * 90, "漢字。", "🙂"),
        *("\n", "\n\n", "\r\n\r\n", " ", "\t", "\ufeff", "\u200b", "...", "!", "(a) b.", "\x1c", "\xa0"),
        *("# Title\n", "Title\n---\n"),
    ]
)
TEXTS = st.one_of(st.lists(PIECES, max_size=60).map("".join), st.text(max_size=300))


@st.composite
def documents(draw: st.DrawFn) -> Document:
    text = draw(TEXTS)
    places = sorted(draw(st.sets(st.integers(0, max(0, len(text) - 1)), max_size=5))) if text else []
    ends = [*places[1:], len(text)][: len(places)]
    headings = tuple(
        Heading(start, draw(st.integers(start, end)), draw(st.integers(1, 6)), text[start:end])
        for start, end in zip(places, ends, strict=True)
    )
    return Document(text, "source", {}, headings, tuple(places))


def letters(text: str) -> int:
    return sum(character != "\ufeff" and not character.isspace() for character in text)


@settings(max_examples=300, deadline=None)
@given(documents(), st.integers(8, 40))
def test_spans_are_exact_passages_fit_and_no_text_is_lost(document: Document, max_tokens: int) -> None:
    passages = chunk_document(document, count, max_tokens=max_tokens)
    covered = bytearray(len(document.text))
    for passage in passages:
        assert document.text[passage.start : passage.end] == passage.text
        assert passage.text.strip("\ufeff") == passage.text.strip() == passage.text != ""
        assert count(passage.text) <= max_tokens
        covered[passage.start : passage.end] = b"\1" * len(passage.text)
    assert letters("".join(c for c, hit in zip(document.text, covered, strict=True) if not hit)) == 0
    assert all(a.end <= b.start for a, b in pairwise(passages))


@given(TEXTS)
def test_sentences_cover_all_but_whitespace_in_order(text: str) -> None:
    spans = list(sentences(text))
    assert all(first[1] <= second[0] for first, second in pairwise(spans))
    assert sum(letters(text[start:end]) for start, end in spans) == letters(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One here. Two there! Three? Four", ["One here.", "Two there!", "Three?", "Four"]),
        ("Dr. J. Smith said e.g. Nothing. Then 3.5 km.", ["Dr. J. Smith said e.g. Nothing.", "Then 3.5 km."]),
        ("He said “Stop.” She did.", ["He said “Stop.”", "She did."]),
        ("version 3.11. of it. and on", ["version 3.11. of it. and on"]),
        ("First\nline. Second\n\nParagraph", ["First\nline.", "Second", "Paragraph"]),
        ("Shop:\n- milk\n- bread\n2. more", ["Shop:", "- milk", "- bread", "2. more"]),
        ("今日は。明日も。", ["今日は。", "明日も。"]),
        ("何ですか?はい!次へ", ["何ですか?", "はい!", "次へ"]),
        ("「はい。」と言う｡次", ["「はい。」", "と言う｡", "次"]),
        ("यह पहला है। यह दूसरा है॥ अंत", ["यह पहला है।", "यह दूसरा है॥", "अंत"]),
        ("ما اسمك؟ اسمي علي. شكرا", ["ما اسمك؟", "اسمي علي.", "شكرا"]),
    ],
)
def test_sentences_end_where_a_human_would_end_them(text: str, expected: list[str]) -> None:
    assert [text[start:end] for start, end in sentences(text)] == expected


def test_sentences_are_packed_up_to_the_limit() -> None:
    document = Document(" ".join(f"This is the sentence number {n}." for n in range(10)), "s")
    passages = chunk_document(document, count, max_tokens=13)
    assert [count(passage.text) for passage in passages] == [12] * 5


def test_a_list_stays_whole_with_the_line_that_introduces_it_if_it_fits() -> None:
    lead, items = "It has two drawbacks:", ["- It melts in the sun.", "- It burns. It is\n  hot."]
    text = f"{'Bees make wax in a hive. ' * 2}{lead}\n\n{items[0]}\n{items[1]}\n\nBees dance well."
    passages = chunk_document(Document(text, "a.md"), count, max_tokens=20)
    [whole] = [passage.text for passage in passages if "burns" in passage.text]
    assert whole.startswith(f"{lead}\n\n{items[0]}\n{items[1]}")
    long = f"{lead}\n\n" + "\n".join(f"- It is the drawback number {number}." for number in range(9))
    assert max(count(passage.text) for passage in chunk_document(Document(long, "a.md"), count, max_tokens=20)) <= 20


def test_a_long_sentence_is_cut_at_lines_before_words_and_words_before_letters() -> None:
    lines = chunk_document(Document("one two three four five\nsix seven eight nine ten", "s"), count, max_tokens=8)
    assert [passage.text for passage in lines] == ["one two three four five", "six seven eight nine ten"]
    words = chunk_document(Document("one two three four five six seven eight nine", "s"), count, max_tokens=8)
    assert [passage.text for passage in words] == ["one two three four five six seven eight", "nine"]
    letters = chunk_document(Document("x" * 1000, "s"), count, max_tokens=8)
    assert "".join(passage.text for passage in letters) == "x" * 1000
    assert max(len(passage.text) for passage in letters) <= 8 * 16, "one unknown token may not hide a whole file"


@pytest.mark.parametrize("character", ["👩‍👧‍👦", "e\u0301", "ก็", "🇩🇪", "नि"])
def test_no_passage_cuts_a_character_that_people_see_as_one(character: str) -> None:
    passages = chunk_document(Document(character * 300, "s"), count, max_tokens=8)
    assert len(passages) > 1
    assert all(len(passage.text) % len(character) == 0 for passage in passages)


def test_a_passage_with_more_tokens_than_its_sentences_is_shortened() -> None:
    def joined(text: str) -> int:
        return count(text) + 3 * text.count(". ")  # like a tokenizer that does not split at spaces

    document = Document("One two three. Four five six. Seven eight nine.", "s")
    passages = chunk_document(document, joined, max_tokens=9)
    assert [passage.text for passage in passages] == ["One two three. Four five six.", "Seven eight nine."]
    assert max(joined(passage.text) for passage in passages) <= 9


def test_titles_are_the_headings_above_and_a_heading_without_text_joins_the_next() -> None:
    text = "# Top\n\n## Left\n\nOne.\n\n### Deep\n\nTwo.\n\n## Right\n\nThree.\n"
    starts = {title: text.index(f"# {title}") for title in ("Top", "Left", "Deep", "Right")}
    levels = {"Top": 1, "Left": 2, "Deep": 3, "Right": 2}
    headings = tuple(Heading(start - levels[t] + 1, start + 2 + len(t), levels[t], t) for t, start in starts.items())
    passages = chunk_document(Document(text, "s", {}, headings), count)
    assert [(passage.metadata["title"], passage.text) for passage in passages] == [
        ("Top > Left", "# Top\n\n## Left\n\nOne."),
        ("Top > Left > Deep", "### Deep\n\nTwo."),
        ("Top > Right", "## Right\n\nThree."),
    ]


def test_title_and_page_come_from_the_document_if_there_is_no_heading() -> None:
    document = Document("First page.\n\nSecond page.", "s.pdf", {"title": "Report"}, (), (0, 13))
    passages = chunk_document(document, lambda text: 5 * len(text.split()), max_tokens=12)
    assert [dict(passage.metadata) for passage in passages] == [
        {"title": "Report", "page": "1"},
        {"title": "Report", "page": "2"},
    ]


def test_ids_are_stable_and_differ_by_place_source_and_text() -> None:
    def ids(text: str, source: str) -> list[str]:
        return [passage.id for passage in chunk_document(Document(text, source), count, max_tokens=8)]

    assert ids("same words here\n\n" * 9, "s") == ids("same words here\n\n" * 9, "s")
    every = [*ids("same words here\n\n" * 9, "s"), *ids("same words here", "t"), *ids("some words here", "s")]
    assert len(set(every)) == len(every) > 5


LINES = st.sampled_from(
    [
        *("", "Text.", "```", "```sh", "~~~", "    ```", "| a | b |", "|---|---|", "> ```", "|", "\r"),
        *("Wax", "====", "Wax melts:", "    wax = 3", "  - a", "\t"),
    ]
)


@given(st.lists(LINES, max_size=30).map("\n".join), st.integers(0, 10), st.sampled_from(Markup))
def test_blocks_of_every_markup_cover_the_whole_text_in_order(text: str, start: int, markup: Markup) -> None:
    start = min(start, len(text))
    found = list(blocks(text, start, markup=markup))
    assert [each.end for each in found][-1:] == [len(text)][: len(text) - start]
    assert all(one.end == other.start for one, other in pairwise(found))
    assert all(one.start < one.end for one in found)
    assert not found or found[0].start == start


def test_fenced_code_and_tables_are_separated_from_prose() -> None:
    text = "To build:\n\n```sh\nmake\n\nmake test\n```\nThen:\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nDone.\n"
    found = [(each.kind, text[each.start : each.end]) for each in blocks(text)]
    assert [kind for kind, _ in found] == [
        BlockKind.TEXT,
        BlockKind.CODE,
        BlockKind.TEXT,
        BlockKind.TABLE,
        BlockKind.TEXT,
    ]
    assert code_lines(found[1][1]) == ["make", "make test"]
    assert table_rows(found[3][1]) == ("a | b", ["1 | 2"])


def test_a_passage_keeps_code_whole_with_the_sentence_that_introduces_it() -> None:
    prose = " ".join(f"Sentence number {number} says little." for number in range(5))
    code = "```sh\ncmake -B build\n\ncmake --build build\n```"
    text = f"{prose} To build it:\n\n{code}\n"
    passages = chunk_document(Document(text, "a.md"), count, max_tokens=30)
    [whole] = [passage.text for passage in passages if "cmake -B" in passage.text]
    assert whole == f"To build it:\n\n{code}"


def test_the_embedded_text_has_its_headings_once() -> None:
    under = Passage.at("a.md", 0, "It melts.", {"title": "Wax > Heat"})
    assert under.text_with_headings == "Wax > Heat\nIt melts."
    assert (
        Passage.at("a.md", 0, "## Heat\n\nIt melts.", {"title": "Wax > Heat"}).text_with_headings
        == "Wax\n## Heat\n\nIt melts."
    )
    assert Passage.at("a.md", 0, "It melts.").text_with_headings == "It melts."


def test_numbered_sections_of_a_paper_are_found_and_table_rows_are_not() -> None:
    text = (
        "Bees and Wax\nA. Keeper\nAbstract\nWax melts. It was weighed.\n1 Introduction\nMuch is known of\n"
        "3 Greek authors who kept bees and wrote.\n2 Methods\n2.1 The hive\nA hive was opened.\n"
        "Hives   Queens\n4   Two of them\n12\n3. Results\nIt melts at 64 degrees.\nReferences\n"
    )
    found = [(heading.level, heading.title) for heading in numbered_headings(text)]
    assert found == [
        (1, "Abstract"),
        (1, "1 Introduction"),
        (1, "2 Methods"),
        (2, "2.1 The hive"),
        (1, "3. Results"),
        (1, "References"),
    ]
    assert all(text[heading.start : heading.end] == heading.title for heading in numbered_headings(text))
