"""The oracles can fail: every fault that an engine of this kind is known for turns a named test red."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from antiphon.accel.engines.torch.batched_forward import batch_modes
from antiphon.accel.engines.torch.engine import TorchEngine
from antiphon.accel.engines.torch.traits import declared_traits
from tests.accel import batch_mutants, mutants, test_batch, test_compiled, test_contract, test_engine, test_families

ALIKE = test_contract.test_text_and_logits_are_plain_decodings
BATCH = test_batch.test_every_text_of_a_batch_is_its_own_plain_decoding_and_so_are_its_logits
CACHED = test_engine.test_after_every_step_the_cache_is_that_of_a_fresh_prefill
COMPILED = test_compiled.test_text_and_logits_are_plain_decodings
PADDED = test_engine.test_left_padding_is_seen_by_nobody


@dataclass(frozen=True)
class Row:
    """A fault, and the test of the suite (with its parameters) that turns red where it is put in."""

    fault: Callable[[pytest.MonkeyPatch], None]
    test: Callable[..., None]
    parameters: tuple[Any, ...] = ()
    error: type[Exception] = AssertionError


ROWS = [
    Row(mutants.position_is_the_slot, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.position_is_the_slot, ALIKE, ("random trees", "gpt2", "greedy", "torch")),
    Row(mutants.rows_see_no_ancestors, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.rows_see_their_siblings, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.window_is_one_too_wide, ALIKE, ("random trees", "mistral", "greedy", "torch")),
    Row(mutants.window_counts_slots, ALIKE, ("random trees", "mistral", "greedy", "torch")),
    Row(mutants.padding_is_seen, PADDED, ("llama",)),
    Row(mutants.positions_count_the_padding, PADDED, ("gpt2",)),
    Row(
        mutants.eager_mask_is_boolean,
        test_contract.test_eager_attention_gives_the_same_text_as_plain_decoding,
        ("llama",),
    ),
    Row(mutants.first_rows_are_kept, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(
        mutants.first_rows_are_kept, test_engine.test_after_every_step_the_cache_is_that_of_a_fresh_prefill, ("llama",)
    ),
    Row(mutants.rejected_rows_stay, ALIKE, ("wrong", "llama", "greedy", "torch"), error=IndexError),
    Row(mutants.cache_is_not_cropped, ALIKE, ("wrong", "llama", "greedy", "torch")),
    Row(mutants.accepted_rows_are_not_moved, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.accepted_rows_are_not_moved, ALIKE, ("random trees", "mistral", "greedy", "torch")),
    pytest.param(
        Row(mutants.accepted_rows_stay_in_their_blocks, ALIKE, ("random trees", "llama", "greedy", "openvino")),
        marks=test_contract.OPENVINO,
    ),
    Row(mutants.state_is_not_rewound, test_families.test_drafts_change_neither_text_nor_logits, ("mamba2", "greedy")),
    Row(
        mutants.bonus_token_is_lost,
        test_engine.test_an_oracle_draft_of_length_d_emits_d_plus_one_tokens_a_step,
        (3,),
        error=IndexError,
    ),
    Row(
        mutants.text_goes_on_after_its_end,
        test_engine.test_an_end_of_sequence_token_anywhere_in_an_accepted_run_ends_the_text_there,
        (12,),
    ),
    Row(mutants.length_is_looked_at_per_forward, test_engine.test_the_length_limit_cuts_an_accepted_run_exactly, (12,)),
    Row(
        mutants.criteria_are_asked_per_forward,
        test_engine.test_a_custom_criterion_is_asked_after_every_token_and_cuts_exactly_there,
        (test_engine.LENGTH + 5,),
    ),
    Row(
        mutants.criteria_are_asked_per_forward,
        test_engine.test_a_stop_string_across_two_accepted_tokens_ends_the_text_there,
    ),
    Row(mutants.likeliest_child_is_followed, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.padding_is_a_token, test_engine.test_token_id_0_after_a_leaf_is_a_token_and_no_padding, ()),
    Row(
        mutants.every_row_is_chosen,
        test_engine.test_processors_are_called_once_for_each_token_with_exactly_the_text_so_far,
    ),
    Row(mutants.every_row_is_chosen, ALIKE, ("random trees", "llama", "sampled", "torch")),
    Row(
        mutants.processors_miss_the_path,
        test_engine.test_processors_are_called_once_for_each_token_with_exactly_the_text_so_far,
    ),
    Row(mutants.processors_miss_the_path, ALIKE, ("oracle", "llama", "penalised", "torch")),
    Row(mutants.logits_are_the_rows_before, ALIKE, ("oracle", "llama", "greedy", "torch")),
    Row(mutants.compiled_position_is_the_slot, COMPILED, ("llama", "sdpa", "greedy")),
    Row(mutants.rejected_slots_are_seen, COMPILED, ("llama", "sdpa", "greedy")),
    Row(mutants.kept_slots_are_written_again, COMPILED, ("llama", "sdpa", "greedy")),
    Row(mutants.memory_is_not_handed_over, test_compiled.test_texts_that_take_turns_share_a_memory_and_nothing_in_it),
    Row(batch_mutants.rows_go_to_the_neighbour, BATCH, ("llama",)),
    Row(batch_mutants.masks_are_the_neighbours, BATCH, ("llama",)),
    Row(batch_mutants.states_are_the_neighbours, BATCH, ("llama",)),
    Row(batch_mutants.states_are_another_layers, BATCH, ("llama",)),
    Row(batch_mutants.texts_see_each_other, BATCH, ("gptj",)),
]


def name_of(row: Row) -> str:
    parameters = "-".join(map(str, row.parameters))
    return f"{row.fault.__name__}: {row.test.__name__}[{parameters}]"


@cache
def expect_green(test: Callable[..., None], parameters: tuple[Any, ...]) -> None:
    test(*parameters)


def blind_the_probe(patch: pytest.MonkeyPatch) -> None:
    """Believe what a config promises: else the probe would notice most faults first and draft nothing that branches."""
    patch.setattr(TorchEngine, "traits", property(lambda engine: declared_traits(engine.model)))
    patch.setattr(TorchEngine, "sharing", property(lambda engine: batch_modes(engine.model)[0]))


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_fault_turns_its_test_red(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_green(row.test, row.parameters)
    blind_the_probe(monkeypatch)
    row.fault(monkeypatch)
    with pytest.raises(row.error):
        row.test(*row.parameters)
