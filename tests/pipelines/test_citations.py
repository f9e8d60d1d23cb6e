"""Citations: their spans are exact, longer ones win, and none overlap."""

import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.pipelines import Citation, cite
from antiphon.retrieval import Passage

DOCUMENT = "Preface.\n\nThe quick brown fox jumps\nover the lazy dog, and then it sleeps. Foxes are omnivores."


ANCHOR = "The ship is old. The anchor weighs two tonnes. It is red."


def passage(text: str, start: int = 0, source: str = "a.txt") -> Passage:
    return Passage.at(source, start, text)


def squeezed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_citation_has_its_span_in_the_source() -> None:
    start = DOCUMENT.index("The quick")
    found = cite("He says: quick brown fox jumps over the lazy dog!", [passage(DOCUMENT[start:], start)])
    assert found == (
        Citation(
            start=9,
            end=48,
            passage=1,
            source="a.txt",
            source_start=DOCUMENT.index("quick"),
            source_end=DOCUMENT.index(", and then"),
            text="quick brown fox jumps\nover the lazy dog",
        ),
    )
    assert DOCUMENT[found[0].source_start : found[0].source_end] == found[0].text


FOX, WORDS, SAID = "The quick brown fox jumps over", "one two three four five six seven", "Some say: Bees dance."
A_TO_N, H_TO_Z = "a b c d e f g h i j k l m n", "h i j k l m n o p q r s t u v w x y z"


@pytest.mark.parametrize(
    ("answer", "texts", "expected"),
    [
        ("Say: one two three four five six.", [WORDS], [(1, "one two three four five six")]),
        ("Say: one two three four five.", [WORDS], []),  # fewer than six words
        (" Foxes.\n", [DOCUMENT], [(1, "Foxes")]),  # a short answer is cited if all of it is quoted
        ("Foxes, he says.", [DOCUMENT], []),
        ("the quick brown fox jumps over", [FOX], []),  # different case
        ("The quick, brown fox jumps over", [FOX], []),  # different punctuation
        ("The quick brown foxes jump over", [FOX], []),  # different words
        ("Thequick brown fox jumps over it", [FOX], []),  # white space missing
        ("x a b c d e f g h y", ["b c d e f g", "a b c d e f g h"], [(2, "a b c d e f g h")]),  # the longer quote
        (f"{A_TO_N} {H_TO_Z[14:]}", [A_TO_N, H_TO_Z], [(1, "a b c d e f g"), (2, H_TO_Z)]),  # the free part is kept
        ("他说蜜蜂住在蜂箱里。", ["我们知道蜜蜂住在蜂箱里吗"], [(1, "蜜蜂住在蜂箱里")]),  # characters count as words
        ("[1] The anchor weighs two tonnes.", [ANCHOR], [(1, "The anchor weighs two tonnes")]),  # without the number
        ("[2] It is red.\n[1] Bees dance.", [SAID, ANCHOR], [(2, "It is red"), (1, "Bees dance")]),
        ("It is red [2]. Bees dance [1].", [SAID, ANCHOR], [(2, "It is red"), (1, "Bees dance")]),
        # a short quote is cited only from the named passage
        ("[1] It is red. [7] It is red. And more of this and that.", ["Nothing of the kind.", ANCHOR], []),
        ("[2] It is not red. And more of this and that.", ["Nothing of the kind.", ANCHOR], []),
    ],
)
def test_quotes_are_cited_from_their_passages(answer: str, texts: list[str], expected: list[tuple[int, str]]) -> None:
    found = cite(answer, [passage(text) for text in texts])
    assert [(each.passage, each.text) for each in found] == expected
    assert all(answer[each.start : each.end] == each.text for each in found)


def test_repetitive_texts_take_linear_time() -> None:
    words = " ".join(["ha"] * 20_000)
    (found,) = cite(words, [passage(words), passage(words)])
    assert (found.start, found.end, found.passage) == (0, len(words), 1)


texts = st.lists(st.sampled_from(["a", "b", "a,", "c"]), max_size=30).flatmap(
    lambda words: st.sampled_from([" ", "\n", "  "]).map(lambda gap: gap.join(words))
)


@given(answer=texts, sources=st.lists(texts, max_size=3), words=st.integers(1, 4))
def test_every_citation_is_exact_and_none_is_missing(answer: str, sources: list[str], words: int) -> None:
    passages = [passage(source, start=7 * number) for number, source in enumerate(sources)]
    found = cite(answer, passages, words=words)
    spans = [(c.start, c.end) for c in found]
    assert spans == sorted(spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    for c in found:
        source = passages[c.passage - 1]
        assert source.text[c.source_start - source.start : c.source_end - source.start] == c.text
        assert squeezed(answer[c.start : c.end]) == squeezed(c.text)
    cited = {position for start, end in spans for position in range(start, end)}
    said = list(re.finditer(r"\w+", answer))
    for first in range(len(said) - words + 1):  # no run of six uncited words may occur in a source
        start, end = said[first].start(), said[first + words - 1].end()
        if not cited.intersection(range(start, end)):
            window = rf"(?<!\w){re.escape(squeezed(answer[start:end]))}(?!\w)"
            assert not any(re.search(window, squeezed(source)) for source in sources)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("He found the café naïve and cosy.", unicodedata.normalize("NFD", "He found the café naïve and cosy.")),
        (unicodedata.normalize("NFD", "He found the café naïve and cosy."), "He found the café naïve and cosy."),
        ("The efficient filter floats on the water.", "The eﬃcient ﬁlter ﬂoats on the water."),
        ("The code of it is ABC123, ok.", "Ｔｈｅ ｃｏｄｅ ｏｆ ｉｔ ｉｓ ＡＢＣ１２３， ok."),
        ('He said "don\'t panic" to all of them.', "He said “don’t panic” to all of them."),
        ("We said ‘no way’ to all of them.", "We said 'no way' to all of them."),
    ],
)
def test_equal_texts_in_other_characters_are_cited_with_the_offsets_of_the_document(answer: str, text: str) -> None:
    start = 7
    document = "🙂👩‍👧 e\u0301 " + text + " More."
    [citation] = cite(f"🙂 {answer}", [passage(document[start:], start)])
    assert document[citation.source_start : citation.source_end] == citation.text
    assert citation.text == text.rstrip(".")
    assert f"🙂 {answer}"[citation.start : citation.end] == answer.rstrip(".")


@pytest.mark.parametrize(
    "text",
    [
        "पुस्तकालय सुबह नौ बजे से शाम आठ बजे तक खुली",
        "ห้องสมุดเปิดทำการวันจันทร์ถึงวันศุกร์ที่นี่",
        "They all read the naïve cafe\u0301",
        "Please press the small red key 1️⃣",
    ],
)
def test_a_citation_ends_after_a_whole_character(text: str) -> None:
    [citation] = cite(text, [passage(f"{text} x")])
    assert [citation.text, citation.end] == [text, len(text)]


def test_of_equal_quotes_the_one_from_the_named_passage_is_cited() -> None:
    twins = [passage(DOCUMENT, source="a.txt"), passage(DOCUMENT, source="b.txt")]
    found = cite("[2] The quick brown fox jumps over the lazy dog.\n[1] Foxes are omnivores.", twins)
    assert [(each.passage, each.source) for each in found] == [(2, "b.txt"), (1, "a.txt")]


def test_a_citation_covers_the_markup_next_to_it() -> None:
    text = "Put the variables into :file:`.flaskenv`, or set **all of them** here."
    [found] = cite(f"[1] {text}", [passage(text)])
    assert found.text == text.removesuffix(".")
    [found] = cite(
        "[1] `--no-dotenv` disables the files that are read.",
        [passage("`--no-dotenv` disables the files that are read.")],
    )
    assert found.text == "`--no-dotenv` disables the files that are read"
    assert found.start == 4


def test_a_citation_has_the_heading_above_it_and_its_own_lines() -> None:
    metadata = {"title": "Command line > Disable dotenv", "lines": "10-13"}
    quoted = Passage.at(
        "cli.rst", 50, "Flask reads files.\nIt never reads them if the\nvariable is set to one.\n", metadata
    )
    [found] = cite("It never reads them if the variable is set to one.", [quoted])
    assert (found.section, found.location) == ("Disable dotenv", "lines 11-12")


@pytest.mark.parametrize(
    ("text", "cited"),
    [
        (
            "The water has eighteen degrees at most (see the table).",
            "The water has eighteen degrees at most (see the table)",
        ),
        ("(The water has eighteen degrees at most) always.", "The water has eighteen degrees at most"),
    ],
)
def test_a_bracket_that_closes_one_in_the_quote_belongs_to_it(text: str, cited: str) -> None:
    [citation] = cite(cited + text[text.index(cited) + len(cited) :][:1], [Passage.at("a.txt", 0, text)])
    assert citation.text == cited
