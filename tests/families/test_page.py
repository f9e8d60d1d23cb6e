"""The page of model families is what its command prints today."""

import re
from pathlib import Path

import pytest

from antiphon.accel.engines.openvino.conversion import windows_of
from antiphon.accel.engines.openvino.runtime import is_installed
from antiphon.accel.engines.torch.engine import traits_of
from antiphon.pipelines.cli.doctor_report import LEVELS
from tests.families.check import ComparisonResult, FamilyResult, OpenVINOResult, check_family
from tests.families.names import NAMES
from tests.families.page import families_page
from tests.families.table import ALL_FAMILIES, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]

PAGE = (Path(__file__).parents[2] / "docs" / "families.md").read_text(encoding="utf-8")
STAYS = OpenVINOResult({}, "it is another engine")


def test_a_family_is_checked_on_both_engines() -> None:
    results = [check_family(family) for family in ("llama", "bloom", "kimi_linear")]
    assert [(result.family, result.traits.level) for result in results] == [
        ("llama", "tree"), ("bloom", "linear"), ("kimi_linear", "replay"),
    ]  # fmt: skip
    assert all(result.passes(mode) for result in results for mode in ("greedy", "sampled"))
    assert [result.results["greedy"]["oracle"].steps for result in results] == [9, 9, 9]
    if is_installed():
        assert (results[0].openvino.reason, results[0].openvino.results["sampled"]["random trees"].same) == ("", True)
        assert "| 9 | no | " in families_page(results[1:])


def test_every_family_has_the_names_of_models() -> None:
    assert sorted(NAMES) == sorted(ALL_FAMILIES)
    assert len(NAMES) >= 75


def result_of(
    family: str, greedy: ComparisonResult, sampled: ComparisonResult, openvino: OpenVINOResult = STAYS
) -> FamilyResult:
    modes = {"greedy": {"oracle": greedy}, "sampled": {"oracle": sampled}}
    return FamilyResult(family, traits_of(tiny_model(family)), modes, openvino)


def test_the_page_of_families_is_what_its_command_prints_today() -> None:
    """The page's measured columns are taken as they are; names, levels, layers and reasons are computed again."""
    rows = []
    for family in sorted(ALL_FAMILIES, key=lambda each: list(LEVELS).index(traits_of(tiny_model(each)).level)):
        row = rf"^\| {re.escape(family)} \|.*\| (\d+) \| (no: |)([^|]*) \| [^|]* \|$"
        steps, refused, said = re.findall(row, PAGE, flags=re.MULTILINE)[0]
        traits = traits_of(tiny_model(family))
        comparison = ComparisonResult(same=True, tokens=48, steps=int(steps), error=3e-6)
        reason = said if refused else "" if said.startswith("same") else traits.reason
        windows = [] if reason else [window for window in windows_of(traits) if window]
        switch = None if reason or traits.rope is None else traits.rope.position
        openvino = OpenVINOResult({}, reason, None if reason else min(windows, default=None), switch)
        rows.append(result_of(family, comparison, comparison, openvino))
    assert families_page(rows) == PAGE
