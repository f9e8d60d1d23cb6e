"""Identical and nearly identical passages take one place in the results, with all their sources."""

from pathlib import Path

import pytest

from antiphon.retrieval import HashEmbedder, MaxSimReranker, Passage, Retriever, index_passages
from antiphon.retrieval.duplicates import merge_duplicates

LONG = (
    "The valve is opened slowly while the pump is running, because pressure would otherwise rise in the pipe. After "
    "the needle has settled, the second valve is closed by hand, and the pump is switched off at the panel. "
    "Nobody stands below the pipe while the pressure is above the red mark of the gauge."
)


def passages(*texts: str) -> list[Passage]:
    return [Passage.at(f"{place}.txt", 0, text) for place, text in enumerate(texts)]


@pytest.mark.parametrize(
    "copy",
    [
        LONG,
        LONG.replace(" ", "\n"),
        f"* {LONG.replace(',', ';')}",
        LONG.casefold(),
        LONG.replace("slowly", "gently"),
        f"{LONG} (see above)",
    ],
)
def test_a_repeated_passage_is_listed_as_a_source_of_the_first(copy: str) -> None:
    [merged] = merge_duplicates(passages(LONG, copy))
    assert [merged.text, merged.source, merged.also_in] == [LONG, "0.txt", ("1.txt",)]


@pytest.mark.parametrize(
    "other",
    [
        LONG.replace("second", "2nd"),
        LONG.replace("is opened", "is not opened"),
        LONG.replace("valve", "Kilo"),
        LONG[: len(LONG) // 2],
        "The pump is red.",
    ],
)
def test_passages_that_say_something_else_stay_apart(other: str) -> None:
    assert len(merge_duplicates(passages(LONG, other))) == 2


def test_short_passages_are_merged_only_if_all_words_are_equal() -> None:
    found = merge_duplicates(passages("It is red.", "It is blue.", "it is  RED", "!", "?"))
    assert [each.text for each in found] == ["It is red.", "It is blue.", "!", "?"]
    assert found[0].also_in == ("2.txt",)


def test_equal_rows_below_other_column_names_stay_apart() -> None:
    rows = [
        Passage.at("a.csv", start, "5 | 3", {"column_names": names}) for start, names in ((0, "in | out"), (9, "x | y"))
    ]
    assert merge_duplicates(rows) == rows
    assert len(merge_duplicates([rows[0], rows[0]])) == 1


def test_equal_text_below_other_headings_stays_apart() -> None:
    one, other, copy = (
        Passage.at(f"{place}.md", 0, LONG, {"title": title})
        for place, title in enumerate(("Pump > Model A", "Pump > Model B", "Pump > Model A"))
    )
    kept = merge_duplicates([one, other, copy])
    assert [(each.source, each.also_in) for each in kept] == [("0.md", ("2.md",)), ("1.md", ())]


@pytest.mark.parametrize("reranker", [None, MaxSimReranker(HashEmbedder(), depth=3)])
def test_copies_do_not_crowd_out_other_passages(reranker: MaxSimReranker | None, tmp_path: Path) -> None:
    copies = [Passage.at(f"copy{n}.txt", 0, "The pump is switched off at the panel.") for n in range(250)]
    others = passages("The pump is red.", "The panel is in the hall.", "A pump needs oil.")
    index_passages([*copies, *others], tmp_path / "index", HashEmbedder())
    found = Retriever.open(tmp_path / "index", reranker=reranker).search("where is the pump switched off", 3)
    assert len({each.text for each in found}) == 3
    [first] = [each for each in found if each.source.startswith("copy")]
    assert len(first.also_in) >= 1
    assert not {first.source, "0.txt"} & set(first.also_in)
