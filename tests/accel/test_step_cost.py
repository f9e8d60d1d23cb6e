"""The cost of a step is measured on real forwards, of as many rows as the model can verify."""

from typing import Any

import pytest

from antiphon.accel.probe import traits_of
from antiphon.accel.step_cost import StepCost, measure
from antiphon.accel.tiny import tiny_model

COST = StepCost(context=100, seconds={1: 0.5, 2: 0.75, 4: 1.0})


@pytest.mark.parametrize(("rows", "ratio"), [(1, 1.0), (2, 1.5), (3, 1.75), (4, 2.0)])
def test_a_ratio_is_in_plain_steps_and_lies_on_the_line_between_two_that_were_measured(rows: int, ratio: float) -> None:
    assert COST.ratio(rows) == ratio


@pytest.mark.parametrize("rows", [0, 5])
def test_what_was_not_measured_is_not_made_up(rows: int) -> None:
    with pytest.raises(ValueError, match=f"rows is {rows}; from 1 to 4 were measured"):
        COST.ratio(rows)


def test_a_cost_in_json_has_milliseconds_and_ratios_by_rows() -> None:
    assert COST.as_dict() == {"context": 100, "rows": [1, 2, 4], "ms": [500, 750, 1000], "ratio": [1.0, 1.5, 2.0]}


@pytest.mark.parametrize("family", ["llama", "gemma3", "bloom", "mamba2"])
def test_every_number_of_rows_is_fed_as_often_as_asked_after_the_context(family: str) -> None:
    model = tiny_model(family)
    traits_of(model)
    fed: list[int] = []
    model.register_forward_hook(lambda *call: fed.append(call[2]["input_ids"].shape[1]), with_kwargs=True)
    cost = measure(model, rows=(2, 6), context=50, repeats=3)
    assert cost.context == 50
    assert list(cost.seconds) == [1, 2, 6]
    assert all(seconds > 0 for seconds in cost.seconds.values())
    assert fed[0] == 50
    once = 1 + 3  # a first time that does not count, and three that do
    replays = 2 * once if family == "mamba2" else 0  # drafts that nobody accepts: one more forward of the root each
    assert sorted(fed[1:]) == [1] * (once + replays) + [2] * once + [6] * once


def test_a_model_that_verifies_nothing_costs_what_a_plain_step_costs() -> None:
    assert list(measure(tiny_model("mamba"), context=20, repeats=1).seconds) == [1]


@pytest.mark.parametrize(
    ("positions", "context", "counts"), [(512, 300, [1, 8, 32]), (72, 34, [1, 8, 32]), (16, 1, [1, 8])]
)
def test_no_row_stands_where_the_model_has_no_position(positions: int, context: int, counts: list[int]) -> None:
    model = tiny_model("gpt2", n_positions=positions, max_position_embeddings=positions)  # it fails beyond its table
    cost = measure(model, rows=(8, 32), context=300, repeats=1)
    assert (cost.context, list(cost.seconds)) == (context, counts)


def test_no_row_stands_beyond_a_switch_of_rotary_frequencies() -> None:
    cost = measure(tiny_model("phi3-longrope"), rows=(8,), context=300, repeats=1)
    assert cost.context + 8 + 4 == 52


@pytest.mark.parametrize("options", [{"context": 0}, {"repeats": 0}, {"rows": (0, 4)}, {"rows": ()}])
def test_what_cannot_be_measured_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is 0; at least 1 is needed"):
        measure(tiny_model(), **options)
