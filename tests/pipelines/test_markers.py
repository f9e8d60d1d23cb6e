"""Markers become citations of their passages; those of passages that do not exist are removed, also from streams."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.accel import Step, Stream
from antiphon.pipelines.markers import MarkedStream, MarkerReader, cite_all
from antiphon.retrieval import Passage
from tests.tiny import byte_tokenizer

PASSAGES = [
    Passage.at("bees.txt", 100, "Wax is soft.\nBees live in colonies of up to sixty thousand.", {"lines": "1"}),
    Passage.at("honey.txt", 0, "Honey keeps for years, as others found [7]. Wax melts, says [1]."),
]


def read(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Return the text that remains, and its markers with their characters."""
    reader = MarkerReader(PASSAGES)
    remains = reader.push(text, is_last=True)
    return remains, [(marker.number, remains[marker.start : marker.end]) for marker in reader.markers]


@pytest.mark.parametrize(
    ("text", "remains", "markers"),
    [
        ("Bees [1]. Wax[2].", "Bees [1]. Wax[2].", [(1, "[1]"), (2, "[2]")]),
        ("Bees [1][2] 【1】", "Bees [1][2] 【1】", [(1, "[1]"), (2, "[2]"), (1, "【1】")]),
        ("Bees [1, 2] 【2†L3-L10】", "Bees [1, 2] 【2†L3-L10】", [(1, "[1"), (2, ", 2]"), (2, "【2†L3-L10】")]),
        ("Bees [7]. Wax [3][12]!", "Bees. Wax!", []),
        ("[9] Bees\n  【9】 dance", "Bees\ndance", []),
        ("Bees [9, 8, 1, 7, 2] dance", "Bees [1, 2] dance", [(1, "[1"), (2, ", 2]")]),
        ("Call `row[9]`, not [9]:\n```\nrow[9]\n```\n", "Call `row[9]`, not:\n```\nrow[9]\n```\n", []),
        ("See [9](https://a.example) and [0], [1024], [x]", "See [9](https://a.example) and [0], [1024], [x]", []),
        ("Honey keeps for years, as others found [7].", "Honey keeps for years, as others found [7].", []),
        ("It keeps: wax melts, says [1].", "It keeps: wax melts, says [1].", []),
    ],
)
def test_markers_are_found_and_dead_ones_removed(text: str, remains: str, markers: list[tuple[int, str]]) -> None:
    assert read(text) == (remains, markers)


@given(st.text("[]19, `\n(a†【】", max_size=24), st.lists(st.integers(1, 5), min_size=24, max_size=24))
def test_a_stream_decides_as_the_whole_text_does(text: str, sizes: list[int]) -> None:
    reader, streamed, start = MarkerReader(PASSAGES), "", 0
    for size in sizes:
        streamed += reader.push(text[start : start + size])
        start += size
    streamed += reader.push("", is_last=True)
    assert (streamed, reader.read) == (read(text)[0], len(text))
    kept = [sign for place, sign in enumerate(text) if not any(a <= place < b for a, b in reader.removed)]
    assert "".join(kept) == streamed


def test_a_marker_cites_the_nearest_line_of_its_passage_or_is_unsupported() -> None:
    text = "Colonies have thousands [1]. Rockets fly to the moon [2, 1].\n[2] Honey keeps long, see there.\n- [1]\n"
    colony, rocket, rocket_too, honey, alone = cite_all(text, PASSAGES, 2)
    assert [text[each.start : each.end] for each in (colony, rocket, rocket_too, honey)] == ["[1]", "[2", ", 1]", "[2]"]
    assert {each.kind for each in (colony, rocket, rocket_too, honey, alone)} == {"marker"}
    assert (colony.text, colony.source_start) == ("Bees live in colonies of up to sixty thousand.", 113)
    assert (colony.source, colony.location, colony.unsupported) == ("bees.txt", "lines 2", False)
    assert honey.text == "Honey keeps for years, as others found [7]."
    assert [rocket.unsupported, rocket_too.unsupported, honey.unsupported] == [True, True, False]
    assert cite_all(text, PASSAGES, 0) == (), "a text without a numbered prompt has no markers"


def test_verbatim_spans_stay_citations_of_their_own() -> None:
    text = "Bees live in colonies of up to sixty thousand [1]."
    quote, marker = cite_all(text, PASSAGES, 2)
    assert (quote.kind, text[quote.start : quote.end]) == ("verbatim", text[:45])
    assert (marker.kind, marker.passage, marker.source_start) == ("marker", 1, quote.source_start)


def test_a_stream_keeps_its_tokens_and_moves_their_origins() -> None:
    text, remains = "Bees [9] dance [1, 9]. Wax [", "Bees dance [1]. Wax ["
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text, add_special_tokens=False)
    parts = [tuple(ids[start : start + 3]) for start in range(0, len(ids), 3)]
    steps = (Step(part, 2, 2, 0.0, finish="stop" if part is parts[-1] else None) for part in parts)
    stream = MarkedStream(Stream(steps, tokenizer, prompt_tokens=3), PASSAGES)
    pieces, tokens, origins = [], list[int](), []
    while (piece := stream.next_piece()) is not None:
        pieces.append(piece.text)
        origins += stream.origins_from(len(tokens))
        tokens += stream.tokens_from(len(tokens))
        written = sum(map(len, pieces))
        assert not origins or origins[-1].end <= written, "no token is ahead of the text"
    completion = stream.completion
    assert "".join(pieces) == completion.text == remains
    assert len(pieces) > 5, "the rest is not held back"
    assert (tuple(tokens), tuple(origins)) == (tuple(ids), completion.origins)
    assert completion.usage.completion_tokens == len(text)
    assert "".join(remains[each.start : each.end] for each in completion.origins) == remains
