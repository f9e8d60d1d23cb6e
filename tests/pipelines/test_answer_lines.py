"""The lines that an answer starts with: the best one, those that score nearly as well, and lines after a colon."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antiphon.accel.text.messages import CountedPrompt
from antiphon.pipelines.fitted_prompt import FittedPrompt
from antiphon.pipelines.passage_selection import JoinPrompts, select_passages
from antiphon.pipelines.prompt import Prompt
from antiphon.pipelines.quotes import quotable_lines
from antiphon.retrieval import Passage
from tests.pipelines.passage_prompts import HONEY, WAX, joined_prompt, prompts_of, relevance_of, select


def test_up_to_three_lines_that_score_nearly_as_well_are_quoted() -> None:
    prompts = prompts_of(f"{WAX}\n[1] Drones do not.\n{HONEY}\n[1] Bees fly.")
    selected = select(prompts, Wax=1.0, Honey=2.0, Bees=0.9, Drones=0.8)
    assert (selected.fitted_prompt, selected.options) == (
        prompts[0],
        {"response_prefix": f"{HONEY}\n{WAX}\n[1] Bees fly."},
    )
    assert select(prompts, Wax=1.0, Honey=2.0, Bees=-0.1, Drones=-0.2).options == {"response_prefix": f"{HONEY}\n{WAX}"}


@pytest.mark.parametrize(("lines", "spare"), [(1, -1), (2, 0), (2, 1)])
def test_a_further_line_is_quoted_only_if_it_fits_completely(lines: int, spare: int) -> None:
    room = spare + sum(len(line.split()) + 1 for line in (WAX, HONEY))
    selected = select_passages("", prompts_of(f"{WAX}\n{HONEY}"), relevance_of({"Honey": 0.5}), max_new_tokens=room)
    assert selected.options["response_prefix"] == "\n".join((HONEY, WAX)[:lines])


def test_the_line_after_a_colon_is_quoted_once() -> None:
    lead, code = "[1] To build a hive:", "[1] make hive"
    prompts = prompts_of(f"{lead}\n{code}\n{HONEY}", WAX)
    assert select(prompts, build=3.0).options == {"response_prefix": f"{lead}\n{code}"}
    assert select(prompts, build=3.0, Honey=2.9).options == {"response_prefix": f"{lead}\n{code}\n{HONEY}"}
    assert select(prompts, build=2.9, make=2.8, Honey=3.0).options == {"response_prefix": f"{HONEY}\n{lead}\n{code}"}
    assert select(prompts_of(lead), build=3.0).options == {"response_prefix": lead}
    assert select(prompts, build=2.8, make=3.0).options == {"response_prefix": code}
    asks = f"{lead}\n[1] Where?"
    assert select(prompts_of(f"{asks}\n{code}"), build=3.0).options == {"response_prefix": asks}


def test_the_line_after_a_colon_has_the_number_of_its_passage() -> None:
    lead, code = "[1] **To build a hive:**", "[1] make hive"
    prompts = prompts_of(HONEY, f"{lead}\n{code}")
    said = select(prompts, joined_prompt, build=2.0, Honey=3.0)
    assert said.options == {"response_prefix": f"{HONEY}\n[2] **To build a hive:**\n[2] make hive"}


def test_the_line_after_a_colon_is_quoted_only_if_it_fits_completely() -> None:
    lead, code = "[1] To build a hive:", "[1] make hive"
    room = sum(len(line.split()) + 1 for line in (lead, code))
    for spare, begins in ((0, f"{lead}\n{code}"), (-1, lead)):
        prompts, relevance = prompts_of(f"{lead}\n{code}"), relevance_of({"build": 3.0})
        selected = select_passages("", prompts, relevance, max_new_tokens=room + spare)
        assert selected.options["response_prefix"] == begins


def test_a_line_of_another_passage_is_quoted_if_both_fit_into_one_prompt() -> None:
    prompts = prompts_of(WAX, HONEY)
    both = joined_prompt([*prompts[1].passages, *prompts[0].passages])
    joined: list[Sequence[Passage]] = []

    def join(passages: Sequence[Passage]) -> FittedPrompt:
        joined.append(passages)
        return both

    selected = select(prompts, join, Wax=1.0, Honey=2.0)
    assert (selected.fitted_prompt, selected.options) == (both, {"response_prefix": f"{HONEY}\n[2] Wax melts."})
    assert joined == [list(both.passages)]
    alone = select(prompts, Wax=1.0, Honey=2.0)
    assert (alone.fitted_prompt, alone.options) == (prompts[1], {"response_prefix": HONEY})


def test_only_lines_whose_passages_fit_into_one_prompt_are_quoted() -> None:
    prompts = prompts_of(WAX, f"{HONEY}\n[1] It is sweet.", "[1] Bees fly.")

    def join(most: int) -> JoinPrompts:
        return lambda found: joined_prompt(found) if len(found) <= most else None

    fits = {"Wax": 1.5, "Honey": 2.0, "Bees": 1.0, "sweet": -3.0}
    three, passages = select(prompts, join(3), **fits), [one.passages[0] for one in prompts]
    assert three.options == {"response_prefix": f"{HONEY}\n[2] Wax melts.\n[3] Bees fly."}
    assert three.fitted_prompt.passages == (passages[1], passages[0], passages[2])
    for fit, more in ((-3.0, ""), (1.1, "\n[1] It is sweet.")):
        said = select(prompts, join(2), **fits | {"sweet": fit}).options["response_prefix"]
        assert said == f"{HONEY}\n[2] Wax melts.{more}"


def passage_prompt(text: str, source: str, title: str = "") -> FittedPrompt:
    """Return the prompt of one passage with its quotable lines."""
    passage = Passage.at(source, 0, text, {"title": title})
    [quotes] = quotable_lines([passage])
    return FittedPrompt((passage,), Prompt("?", quotes=quotes), CountedPrompt(f"?{source}", 1))


def test_lines_of_one_paragraph_are_quoted_in_reading_order() -> None:
    prompts = [passage_prompt("Wax melts in the sun. It is yellow. Bees fly far.", "a.md")]
    assert select(prompts, melts=1.0, yellow=0.5, fly=2.0).options == {
        "response_prefix": "[1] Wax melts in the sun.\n[1] It is yellow.\n[1] Bees fly far."
    }


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("The batch size is 500_000 by default.", "The batch size is 1000 by default."),
        ("The default is 500_000.", "It falls back to 1_000 rows."),
        ("Wax melts at 64 degrees.", "Wax melts at 64 degrees, as all know."),
    ],
)
def test_a_further_line_that_contradicts_or_repeats_the_best_one_is_not_quoted(first: str, second: str) -> None:
    prompts = [passage_prompt(first, "a.md", "One"), passage_prompt(second, "b.md", "Two")]
    best = first.split()[-1]
    selected = select(prompts, joined_prompt, **{best: 2.0, second.split()[-1]: 1.5})
    assert selected.options == {"response_prefix": f"[1] {first}"}


def test_a_further_line_with_other_words_and_numbers_of_the_same_section_is_quoted() -> None:
    prompts = [passage_prompt("Wax melts at 64 degrees.\n\nHoney boils at 90.", "a.md", "One")]
    assert select(prompts, Wax=2.0, Honey=1.5).options == {
        "response_prefix": "[1] Wax melts at 64 degrees.\n[1] Honey boils at 90."
    }
