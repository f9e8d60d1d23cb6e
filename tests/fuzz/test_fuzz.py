"""A short fuzz with the same cases every time; `make fuzz` draws new ones."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.case import Case, cases
from tests.fuzz.check import check

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

verdicts: Counter[str] = Counter()


@settings(max_examples=75, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def hold(case: Case) -> None:
    verdicts[check(case)] += 1


def test_random_requests_equal_plain_decoding() -> None:
    hold()
    assert verdicts["same"] >= 65, f"too few cases are conclusive: {verdicts}"
