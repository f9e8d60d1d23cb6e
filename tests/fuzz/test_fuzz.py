"""Random requests equal plain decoding: the same 75 each time, or as many new ones as FUZZ_CASES says (`make fuzz`)."""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.case import Case, cases
from tests.fuzz.check import check

CASES = int(os.environ.get("FUZZ_CASES", "0"))
SHARE = 250
"""Requests of one test; `make fuzz` divides them among its processes."""

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.timeout(3600)]


@pytest.mark.parametrize("share", range(-(-CASES // SHARE) or 1))
def test_random_requests_equal_plain_decoding(share: int) -> None:
    verdicts: Counter[str] = Counter()

    @settings(
        max_examples=min(CASES, SHARE) or 75,
        derandomize=not CASES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def hold(case: Case) -> None:
        verdicts[check(case)] += 1

    hold()
    assert verdicts["same"] >= 0.85 * verdicts.total(), f"too few cases are conclusive: {verdicts}"
