"""A round of fuzzing: cases from one seed, until one fails and is shrunk for up to a minute."""

from __future__ import annotations

import os
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from transformers.utils import logging

from tests.fuzz.case import Case, cases
from tests.fuzz.cast import DEVICE
from tests.fuzz.check import check

SHRINK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Report:
    """The number of cases by verdict, and the failing case with its traceback, if any."""

    verdicts: Counter[str]
    first: str = ""
    failure: str = ""

    @property
    def cases(self) -> int:
        return sum(self.verdicts.values()) + bool(self.failure)


def begin(cache: str, device: str) -> None:
    """Prepare a process: device, one torch thread, warnings as errors, and a temporary user cache."""
    os.environ |= {"XDG_CACHE_HOME": cache, DEVICE: device}
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", ".* is decoded without compiled steps: capturing")  # mixtures of experts on a GPU
    logging.set_verbosity_error()


def fuzz(number: int, size: int, check: Callable[[Case], str] = check) -> Report:
    """Draw ``size`` cases from the seed ``number`` and check each, until the first failure."""
    verdicts: Counter[str] = Counter()
    failing: dict[str, float] = {}

    @seed(number)
    @settings(
        max_examples=size,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(cases())
    def hold(case: Case) -> None:
        is_late = bool(failing) and monotonic() - next(iter(failing.values())) > SHRINK_SECONDS
        if is_late and repr(case) not in failing:
            return  # stop shrinking
        try:
            verdict = check(case)
        except Exception:
            failing.setdefault(repr(case), monotonic())
            raise
        if not failing:
            verdicts[verdict] += 1

    try:
        hold()
    except Exception as error:  # noqa: BLE001 (any exception is a failure)
        return Report(verdicts, next(iter(failing), ""), "".join(traceback.format_exception(error)))
    return Report(verdicts)
