"""Screenshots of the page for the documentation: `python -m tests.pipelines.server.screenshots FOLDER`.

Real questions about the documents of the demo, answered by the bundled extractive model, with a citation open. It needs
chromium on the path.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from antiphon.accel import LanguageModel
from antiphon.pipelines.cli.console import quiet_libraries
from antiphon.pipelines.data.demo import demo_index
from antiphon.pipelines.models.bundled import STOPS, resolve_model
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever
from tests.pipelines.server.live_server import live_server

QUESTIONS = (
    "Is Python named after the snake?",
    "What happens if I uninstall the Python that shipped with my Linux system?",
)
FOLDER = Path(__file__).parents[3] / "docs" / "images"
SIZE: Any = {"width": 1100, "height": 840}


def main(folder: Path) -> None:
    """Take a light and a dark screenshot."""
    quiet_libraries()
    model = LanguageModel.from_pretrained(resolve_model("reader"))
    rag = Rag(Retriever.open(demo_index()), model)
    stop = STOPS.get("reader", ())
    service = make_service(model, ServerSettings(read_only=True), name="reader", rag=rag, docs="python-docs", stop=stop)
    with live_server(create_app(service)) as address, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            context = browser.new_context(color_scheme=scheme, viewport=SIZE, device_scale_factor=1.5)
            take_screenshot(context.new_page(), address, folder / f"page-{scheme}.png")
            context.close()
        browser.close()


def take_screenshot(page: Any, address: str, path: Path) -> None:
    """Ask the questions, open a citation, and save a screenshot."""
    page.goto(address)
    page.wait_for_selector("#model option", state="attached")
    for number, question in enumerate(QUESTIONS, start=1):
        page.fill("#question", question)
        page.click("#send")
        page.locator(f".turn:nth-child({number}) .stats", has_text="steps").wait_for(timeout=120_000)
        page.locator("#status", has_text="Answered").wait_for()
    page.locator(".cited button").last.click()
    page.screenshot(path=path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
