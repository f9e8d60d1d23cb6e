"""Accessibility of the page, checked with axe: light and dark, empty and with an answer.

The answer has segments of every colour and an open citation.
"""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

from tests.pipelines.server.test_page import QUOTE, address, ask, browser

pytestmark = pytest.mark.slow

__all__ = ["address", "browser"]

SERIOUS = ("serious", "critical")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(browser: Any, address: str, scheme: str) -> None:
    context = browser.new_context(bypass_csp=True, color_scheme=scheme, viewport={"width": 1100, "height": 800})
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector("#model option", state="attached")
    assert violations(page) == []
    ask(page, "How long does honey keep?")
    page.evaluate(QUOTE, [f"text {number}" for number in range(8)])
    page.locator(".cited button").nth(1).click()
    assert violations(page) == []
    context.close()


def violations(page: Any) -> list[str]:
    """Return the serious violations with their descriptions and elements."""
    found = Axe().run(page).response
    assert len(found["passes"]) > 10, "axe has checked the page"
    return [
        f"{each['id']}: {each['help']}: {[node['html'][:120] for node in each['nodes']][:4]}"
        for each in found["violations"]
        if each["impact"] in SERIOUS
    ]
