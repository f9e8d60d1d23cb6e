"""Every chat template: the same prompt, the same text and the same refusals everywhere, with and without drafts."""

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.accel.text.template_check import CASES
from tests.template_matrix import (
    OWN_TEMPLATES,
    RECORDED,
    WAYS,
    cell,
    docs_table,
    documents_cell,
    failure,
    refusals,
    surfaces,
    templates,
)

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


def chosen() -> list[Any]:
    """Return our own templates, and the recorded ones as exhaustive tests."""
    recorded = sorted(templates().keys() - OWN_TEMPLATES.keys())
    if not recorded:
        absent = pytest.mark.skip(reason=f"recorded templates are absent: {RECORDED}")
        return [*OWN_TEMPLATES, pytest.param("", id="recorded", marks=absent)]
    return [*OWN_TEMPLATES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in recorded)]


@pytest.mark.parametrize("name", chosen())
def test_python_http_langchain_and_llama_index_agree_on_every_conversation(name: str) -> None:
    template = templates()[name]
    ruled_out = refusals(template)
    with surfaces(template) as ways:
        outcomes = {case.name: cell(ways, case) for case in CASES if case.name not in ruled_out}
        outcomes["documents"] = documents_cell(ways)
        refused = [cell(ways, case) for case in CASES if case.name in ruled_out and case.thinking is None]
    assert {column: why for column, each in outcomes.items() if (why := failure(each))} == {}
    assert set(json.loads(outcomes["schema"]["python"].text)) == {"ok"}
    for each in refused:
        reasons = {outcome.refusal.replace("'tiny'", "'this model'") for outcome in each.values()}
        assert len(each) == len(WAYS)
        assert len(reasons) == 1, "every way to ask refuses with the same message"
        assert "" not in reasons
    if "thinking on" in outcomes:
        lengths = {each: outcomes[f"thinking {each}"]["python"].prompt_tokens for each in ("on", "off")}
        assert lengths["on"] != lengths["off"]


def test_the_page_on_models_has_the_table_of_recorded_templates() -> None:
    if not (templates().keys() - OWN_TEMPLATES.keys()):
        pytest.skip(f"recorded templates are absent: {RECORDED}")
    page = Path(__file__).parents[1] / "docs" / "models.md"
    assert docs_table() in page.read_text("utf-8")


def test_no_template_rules_out_more_than_tools_and_a_switch() -> None:
    for name, template in templates().items():
        assert refusals(template).keys() <= {"tools", "thinking on", "thinking off"}, name
