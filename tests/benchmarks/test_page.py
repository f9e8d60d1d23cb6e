"""The benchmark page in the docs is rendered from the stored results."""

from pathlib import Path

from benchmarks.page import COMMAND, read_results, render_page

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_in_the_docs_is_up_to_date() -> None:
    results = read_results(sorted((DOCS / "results").glob("*.jsonl")))
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert page == render_page(results), f"out of date; run: {COMMAND}"
    assert {result["kind"] for result in results} >= {"replay"}
