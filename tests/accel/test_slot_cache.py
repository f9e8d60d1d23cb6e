"""The fixed-size KV cache of compiled steps."""

from typing import Any

import torch

from antiphon.accel.engines.torch.engine import traits_of
from antiphon.accel.engines.torch.slot_cache import BUCKETS, SlotCache
from tests.tiny import tiny_model


def test_what_a_captured_step_reads_lives_as_long_as_its_slot_cache() -> None:
    """A CUDA graph reads tensors by their addresses: one that is freed is overwritten, and the graph goes wrong."""
    model = tiny_model()
    slot_cache = SlotCache(model, traits_of(model), 64, compiles=False)
    kept = {each.untyped_storage().data_ptr() for each in vars(slot_cache).values() if isinstance(each, torch.Tensor)}
    for rows in BUCKETS:
        step: Any = slot_cache._step(rows)
        read = [cell.cell_contents for cell in step.__closure__ if isinstance(cell.cell_contents, torch.Tensor)]
        assert len(read) == 3
        assert {each.untyped_storage().data_ptr() for each in read} <= kept
