"""Checks all model families (a minute), and prints their page: ``python -m tests.families > docs/families.md``."""

import sys

import torch
from rich.console import Console
from rich.progress import track

from antiphon.pipelines.cli.doctor_report import LEVELS
from tests.families.check import check_family
from tests.families.page import families_page
from tests.families.table import ALL_FAMILIES

if __name__ == "__main__":
    torch.set_num_threads(1)
    families = track(list(ALL_FAMILIES), "Checking families", console=Console(stderr=True))
    results = [check_family(family) for family in families]
    results.sort(key=lambda result: list(LEVELS).index(result.traits.level))
    sys.stdout.write(families_page(results))
    passed = all(result.openvino.passes and all(map(result.passes, result.results)) for result in results)
    sys.exit(0 if passed else "A family is not exact: see the page.")
