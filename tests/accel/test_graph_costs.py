"""How a GPU's settings and state survive a forward pass and a refused request."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from antiphon.accel.engines.torch.attention import varying_shapes
from antiphon.accel.generate import generate
from tests.tiny import VOCAB_SIZE, tiny_model

PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_request_that_allows_no_token_leaves_the_gpu_usable() -> None:
    model: Any = tiny_model(seed=11).to("cuda")  # type: ignore[arg-type]
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True, "eos_token_id": None}
    with pytest.raises(RuntimeError, match="every token is forbidden"):
        generate(model, PROMPT.to("cuda"), suppress_tokens=list(range(VOCAB_SIZE)), **options)
    assert generate(model, PROMPT.to("cuda"), **options).shape[1] == PROMPT.shape[1] + 4  # type: ignore[union-attr]


def test_steps_of_varying_length_do_not_use_attention_that_is_planned_for_each_length() -> None:
    enabled: Callable[[], bool] = torch.backends.cuda.cudnn_sdp_enabled
    assert enabled()
    with varying_shapes(SimpleNamespace(device=torch.device("cuda"))):  # type: ignore[arg-type]
        assert not enabled()
        with varying_shapes(SimpleNamespace(device=torch.device("cuda"))):  # type: ignore[arg-type]
            assert not enabled()
    with varying_shapes(tiny_model()):
        assert enabled()
