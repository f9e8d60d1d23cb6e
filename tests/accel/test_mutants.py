"""Every known kind of engine fault makes a named test fail."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from antiphon.accel.engines.torch.batched_forward import batch_modes
from antiphon.accel.engines.torch.engine import TorchEngine
from antiphon.accel.engines.torch.traits import declared_traits
from tests.accel import (
    batch_mutants,
    mutants,
    test_batch,
    test_compiled,
    test_contract,
    test_engine,
    test_families,
)

pytestmark = pytest.mark.slow

ALIKE = test_contract.test_tokens_and_logits_equal_plain_decoding
BATCH = test_batch.test_tokens_and_logits_of_a_batch_equal_plain_decoding_of_each_sequence
CACHED = test_engine.test_after_every_step_the_cache_is_that_of_a_fresh_prefill
COMPILED = test_compiled.test_tokens_and_logits_equal_plain_decoding
PADDED = test_engine.test_left_padding_is_masked


@dataclass(frozen=True)
class Row:
    """A fault, and the test (with its parameters) that must fail if it is applied."""

    fault: Callable[[pytest.MonkeyPatch], None]
    test: Callable[..., None]
    parameters: tuple[Any, ...] = ()
    error: type[Exception] = AssertionError


ROWS = [
    Row(mutants.positions_are_row_indices, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.positions_are_row_indices, ALIKE, ("random trees", "gpt2", "greedy", "torch")),
    Row(mutants.rows_do_not_attend_to_ancestors, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.rows_attend_to_siblings, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.window_is_one_too_wide, ALIKE, ("random trees", "mistral", "greedy", "torch")),
    Row(mutants.window_counts_rows, ALIKE, ("random trees", "mistral", "greedy", "torch")),
    Row(mutants.left_padding_is_attended, PADDED, ("llama",)),
    Row(mutants.positions_include_the_padding, PADDED, ("gpt2",)),
    Row(
        mutants.eager_mask_is_boolean,
        test_contract.test_eager_attention_gives_the_same_text_as_plain_decoding,
        ("llama",),
    ),
    Row(mutants.the_first_rows_are_kept, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(
        mutants.the_first_rows_are_kept,
        test_engine.test_after_every_step_the_cache_is_that_of_a_fresh_prefill,
        ("llama",),
    ),
    Row(mutants.rejected_rows_are_kept, ALIKE, ("wrong", "llama", "greedy", "torch"), error=IndexError),
    Row(mutants.cache_is_not_cropped, ALIKE, ("wrong", "llama", "greedy", "torch")),
    Row(mutants.accepted_rows_are_not_moved, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.accepted_rows_are_not_moved, ALIKE, ("random trees", "mistral", "greedy", "torch")),
    Row(mutants.accepted_rows_are_not_moved_in_paged_memory, ALIKE, ("random trees", "llama", "greedy", "openvino")),
    Row(
        mutants.recurrent_state_is_not_rewound,
        test_families.test_drafts_change_neither_output_nor_logits,
        ("mamba2", "greedy"),
    ),
    Row(
        mutants.bonus_token_is_dropped,
        test_engine.test_a_correct_draft_of_length_d_emits_d_plus_one_tokens_per_step,
        (3,),
        error=IndexError,
    ),
    Row(
        mutants.end_of_text_is_checked_per_forward_pass,
        test_engine.test_an_eos_token_within_accepted_tokens_ends_the_output,
        (12,),
    ),
    Row(
        mutants.length_is_checked_per_forward_pass,
        test_engine.test_max_new_tokens_is_exact_within_accepted_tokens,
        (12,),
    ),
    Row(
        mutants.criteria_are_checked_per_forward_pass,
        test_engine.test_a_stopping_criterion_is_called_after_every_token,
        (test_engine.LENGTH + 5,),
    ),
    Row(
        mutants.criteria_are_checked_per_forward_pass,
        test_engine.test_a_stop_string_across_two_accepted_tokens_ends_the_output,
    ),
    Row(mutants.first_child_is_followed, ALIKE, ("random trees", "llama", "greedy", "torch")),
    Row(mutants.leaves_have_a_padding_child, test_engine.test_token_id_0_after_a_leaf_is_not_padding, ()),
    Row(
        mutants.every_row_is_sampled,
        test_engine.test_logits_processors_are_called_once_per_token_with_the_tokens_so_far,
    ),
    Row(mutants.every_row_is_sampled, ALIKE, ("random trees", "llama", "sampled", "torch")),
    Row(
        mutants.processors_do_not_see_the_path,
        test_engine.test_logits_processors_are_called_once_per_token_with_the_tokens_so_far,
    ),
    Row(mutants.processors_do_not_see_the_path, ALIKE, ("oracle", "llama", "penalised", "torch")),
    Row(mutants.logits_are_shifted_by_one_row, ALIKE, ("oracle", "llama", "greedy", "torch")),
    Row(mutants.compiled_positions_are_slots, COMPILED, ("llama", "sdpa", "greedy")),
    Row(mutants.rejected_slots_stay_visible, COMPILED, ("llama", "sdpa", "greedy")),
    Row(mutants.accepted_slots_are_reused, COMPILED, ("llama", "sdpa", "greedy")),
    Row(
        mutants.memory_is_not_handed_over, test_compiled.test_sequences_that_take_turns_share_a_slot_cache_and_no_tokens
    ),
    Row(batch_mutants.segments_start_one_row_early, BATCH, ("llama",)),
    Row(batch_mutants.masks_of_the_next_sequence, BATCH, ("llama",)),
    Row(batch_mutants.states_of_the_next_sequence, BATCH, ("llama",)),
    Row(batch_mutants.states_of_the_first_layer, BATCH, ("llama",)),
    Row(batch_mutants.sequences_attend_to_each_other, BATCH, ("gptj",)),
]


def name_of(row: Row) -> str:
    parameters = "-".join(map(str, row.parameters))
    return f"{row.fault.__name__}: {row.test.__name__}[{parameters}]"


@cache
def expect_green(test: Callable[..., None], parameters: tuple[Any, ...]) -> None:
    test(*parameters)


def blind_the_probe(patch: pytest.MonkeyPatch) -> None:
    """Trust the model's config, because the self-test would detect most faults and disable drafts that branch."""
    patch.setattr(TorchEngine, "traits", property(lambda engine: declared_traits(engine.model)))
    patch.setattr(TorchEngine, "batch_mode", property(lambda engine: batch_modes(engine.model)[0]))


@pytest.mark.parametrize("row", ROWS, ids=name_of)
def test_a_fault_turns_its_test_red(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_green(row.test, row.parameters)
    blind_the_probe(monkeypatch)
    row.fault(monkeypatch)
    with pytest.raises(row.error):
        row.test(*row.parameters)
