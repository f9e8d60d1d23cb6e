"""What stands in for a part of vLLM, without vLLM."""

from __future__ import annotations

import pytest
import torch

from antiphon.integrations.vllm.seam import expanded


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_every_drafted_token_gets_what_its_request_has(dtype: torch.dtype) -> None:
    """Three requests with two, no and three drafted tokens; the last one is greedy, which vLLM writes as 0."""
    given = torch.tensor([3, 5, 0], dtype=dtype)
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    found = expanded(given, ends, 5, replace_from=0, replace_to=1)
    assert found.tolist() == [3, 3, 1, 1, 1]
    assert found.dtype == dtype
    assert expanded(given, ends, 5).tolist() == [3, 3, 0, 0, 0]
    assert given.tolist() == [3, 5, 0]
