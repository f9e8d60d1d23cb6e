"""A short fuzz of the engine, the same cases every time; `make fuzz` draws new ones."""

from collections import Counter

from hypothesis import HealthCheck, given, settings

from tests.fuzz.case import Case, cases
from tests.fuzz.check import check

verdicts: Counter[str] = Counter()


@settings(max_examples=150, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def hold(case: Case) -> None:
    verdicts[check(case)] += 1


def test_any_request_is_decoded_as_plain_decoding_does() -> None:
    hold()
    assert verdicts["same"] >= 130, f"too few cases say anything: {verdicts}"
