"""Which lines are said together: the heaviest, those that weigh nearly as much, and what they lead to."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antiphon.pipelines.each import AskedPassages, Join, choose_passages
from antiphon.pipelines.prompt import DECLINED, Prompt
from antiphon.retrieval import Passage
from tests.pipelines.asked import HONEY, WAX, asked_of, chosen_of, measures_of
from tests.pipelines.scripted import Scripted


def test_lines_of_the_passage_that_are_nearly_as_heavy_are_said_after_the_first_three_at_most() -> None:
    asked = asked_of(f"{WAX}\n[1] Drones do not.\n{HONEY}\n[1] Bees fly.")
    likely = dict.fromkeys(asked[0].lines, -1.0)
    chosen = chosen_of(asked, likely, Wax=1.0, Honey=2.0, Bees=0.9, Drones=0.8)
    assert (chosen.asked, chosen.options) == (asked[0], {"response_prefix": f"{HONEY}\n{WAX}\n[1] Bees fly."})
    assert chosen_of(asked, likely, Wax=1.0, Honey=2.0, Bees=-0.1, Drones=-0.2).options == {
        "response_prefix": f"{HONEY}\n{WAX}"
    }


@pytest.mark.parametrize(("lines", "spare"), [(1, -1), (2, 0), (2, 1)])
def test_a_further_line_is_said_only_where_it_can_be_said_whole(lines: int, spare: int) -> None:
    model = Scripted(dict.fromkeys((WAX, HONEY), -1.0) | {DECLINED: -9.0})
    room = spare + sum(len(model.tokenizer.encode(line, add_special_tokens=False)) + 1 for line in (WAX, HONEY))
    chosen = choose_passages(model, asked_of(f"{WAX}\n{HONEY}"), measures_of({"Honey": 0.5}), max_new_tokens=room)
    assert chosen.options["response_prefix"] == "\n".join((HONEY, WAX)[:lines])


def test_what_a_line_leads_to_is_said_after_it_once() -> None:
    lead, code = "[1] To build a hive:", "[1] make hive"
    asked = asked_of(f"{lead}\n{code}\n{HONEY}", WAX)
    likely = dict.fromkeys((lead, code, HONEY, WAX), -1.0)
    assert chosen_of(asked, likely, build=3.0).options == {"response_prefix": f"{lead}\n{code}"}
    assert chosen_of(asked, likely, build=3.0, Honey=2.9).options == {"response_prefix": f"{lead}\n{code}\n{HONEY}"}
    assert chosen_of(asked, likely, build=2.9, make=2.8, Honey=3.0).options == {
        "response_prefix": f"{HONEY}\n{lead}\n{code}"
    }
    assert chosen_of(asked_of(lead), likely, build=3.0).options == {"response_prefix": lead}
    assert chosen_of(asked, likely, build=2.8, make=3.0).options == {"response_prefix": code}
    asks = f"{lead}\n[1] Where?"
    assert chosen_of(asked_of(f"{asks}\n{code}"), likely, build=3.0).options == {"response_prefix": asks}


def test_what_a_line_of_another_passage_leads_to_has_its_number() -> None:
    lead, code = "[1] **To build a hive:**", "[1] make hive"
    asked = asked_of(HONEY, f"{lead}\n{code}")
    likely = dict.fromkeys((lead, code, HONEY), -1.0)
    said = chosen_of(asked, likely, lambda found: AskedPassages((*found,), Prompt("all"), "all"), build=2.0, Honey=3.0)
    assert said.options == {"response_prefix": f"{HONEY}\n[2] **To build a hive:**\n[2] make hive"}


def test_what_a_line_leads_to_is_said_only_where_it_can_be_said_whole() -> None:
    lead, code = "[1] To build a hive:", "[1] make hive"
    model = Scripted(dict.fromkeys((lead, code), -1.0) | {DECLINED: -9.0})
    room = sum(len(model.tokenizer.encode(line, add_special_tokens=False)) + 1 for line in (lead, code))
    for spare, begins in ((0, f"{lead}\n{code}"), (-1, lead)):
        asked, measures = asked_of(f"{lead}\n{code}"), measures_of({"build": 3.0})
        chosen = choose_passages(model, asked, measures, max_new_tokens=room + spare)
        assert chosen.options["response_prefix"] == begins


def test_a_second_line_of_another_passage_is_said_if_both_fit_into_one_prompt() -> None:
    asked = asked_of(WAX, HONEY)
    both = AskedPassages((*asked[1].passages, *asked[0].passages), Prompt("both"), "both")
    joined: list[Sequence[Passage]] = []

    def join(passages: Sequence[Passage]) -> AskedPassages:
        joined.append(passages)
        return both

    likely = {WAX: -1.0, HONEY: -1.0}
    chosen = chosen_of(asked, likely, join, Wax=1.0, Honey=2.0)
    assert (chosen.asked, chosen.options) == (both, {"response_prefix": f"{HONEY}\n[2] Wax melts."})
    assert joined == [list(both.passages)]
    alone = chosen_of(asked, likely, Wax=1.0, Honey=2.0)
    assert (alone.asked, alone.options) == (asked[1], {"response_prefix": HONEY})


def test_of_lines_of_several_passages_those_are_said_whose_passages_fit_into_one_prompt() -> None:
    asked = asked_of(WAX, f"{HONEY}\n[1] It is sweet.", "[1] Bees fly.")
    likely = dict.fromkeys([line for one in asked for line in one.lines], -1.0)

    def join(most: int) -> Join:
        return lambda found: AskedPassages((*found,), Prompt("all"), "all") if len(found) <= most else None

    fits = {"Wax": 1.5, "Honey": 2.0, "Bees": 1.0, "sweet": -3.0}
    three, passages = chosen_of(asked, likely, join(3), **fits), [one.passages[0] for one in asked]
    assert three.options == {"response_prefix": f"{HONEY}\n[2] Wax melts.\n[3] Bees fly."}
    assert three.asked.passages == (passages[1], passages[0], passages[2])
    for fit, more in ((-3.0, ""), (1.1, "\n[1] It is sweet.")):
        said = chosen_of(asked, likely, join(2), **fits | {"sweet": fit}).options["response_prefix"]
        assert said == f"{HONEY}\n[2] Wax melts.{more}"
