"""Screenshots of the page for the documentation: `python -m benchmarks.screenshots FOLDER`.

Real questions about the documents of the demo: answered with quotes, and in the speed view by the small chat model. It
needs chromium on the path.
"""

import io
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from antiphon.accel import LanguageModel
from antiphon.pipelines.cli.console import quiet_libraries
from antiphon.pipelines.extractive_model import EXTRACTIVE, ExtractiveModel
from antiphon.pipelines.rag import Rag
from antiphon.pipelines.server.app import create_app
from antiphon.pipelines.server.collections import Collection
from antiphon.pipelines.server.service import make_service
from antiphon.pipelines.server.settings import ServerSettings
from antiphon.retrieval import Retriever
from benchmarks.demo_data import demo_index
from tests.pipelines.server.live_server import live_server
from tests.pipelines.server.page_fixtures import ask, open_quote
from tests.retrieval.pdf_files import Text, lines, pages_of, shown

QUESTIONS = (
    "Is Python named after the snake?",
    "What happens if I uninstall the Python that shipped with my Linux system?",
)
PDF_QUESTION = "How many bees live in a colony in summer?"
SPEED_QUESTION = "What is the Zen of Python?"
CHAT_MODEL = "smollm2"
FOLDER = Path(__file__).parents[1] / "docs" / "images"
WIDE: Any = {"width": 1100, "height": 920}
SMALL: Any = {"width": 390, "height": 844}
SCALE = 1.5
PAGE = (
    "A colony of honey bees has one queen, some hundred drones and many workers. In",
    "summer forty to sixty thousand bees live in a colony; in winter there are ten",
    "thousand, because the drones have left and few eggs are laid.",
    "",
    "Workers live for six weeks in summer. In the first three they clean cells, feed",
    "the brood and build combs, and then they fly out for nectar, pollen and water.",
)


def main(folder: Path) -> None:
    """Take all screenshots."""
    quiet_libraries()
    with TemporaryDirectory() as work, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with served(ExtractiveModel(), EXTRACTIVE, Path(work)) as address:
            for scheme in ("light", "dark"):
                take_answers(browser, address, scheme, folder)
            take_source(browser, address, Path(work), folder)
        with served(LanguageModel.from_pretrained(CHAT_MODEL), CHAT_MODEL, Path(work)) as address:
            take_speed(browser, address, folder)
        browser.close()


@contextmanager
def served(model: Any, name: str, work: Path) -> Iterator[str]:
    """Serve the documents of the demo with a model, and yield the address."""
    index = work / name / "index"
    shutil.copytree(demo_index(), index)
    docs = [Collection("python-docs", Rag(Retriever.open(index), model), index.with_name("uploads"))]
    service = make_service(model, ServerSettings(), name=name, collections=docs)
    with live_server(create_app(service)) as address:
        yield address


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """Open the page."""
    context = browser.new_context(**{"viewport": WIDE, "device_scale_factor": SCALE, **options})
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.goto(address)
    page.locator("#document-list li").first.wait_for(state="attached")
    yield page
    context.close()


def save(page: Any, path: Path) -> None:
    """Save the visible part of the page with 256 colours, so that the file is small."""
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def take_answers(browser: Any, address: str, scheme: str, folder: Path) -> None:
    """Take a wide and a small screenshot of two answers with their sources."""
    with opened(browser, address, color_scheme=scheme) as page:
        ask(page, QUESTIONS[0])  # loads the models
        page.click("#new-conversation")
        for question in QUESTIONS:
            ask(page, question)
        page.get_by_label(f"Delete the conversation: {QUESTIONS[0]}").last.click()
        save(page, folder / f"page-{scheme}.png")
        page.set_viewport_size(SMALL)
        page.locator(".turn").last.scroll_into_view_if_needed()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        save(page, folder / f"page-small-{scheme}.png")


def take_source(browser: Any, address: str, work: Path, folder: Path) -> None:
    """Take a screenshot of a quote on the page of a PDF file."""
    heading: Text = (72, 700, 20, "Bees in summer and in winter")
    (work / "Bees.pdf").write_bytes(pages_of(shown([heading, *lines(*PAGE, top=660, pitch=18, size=12)])))
    with opened(browser, address) as page:
        page.set_input_files("#files", work / "Bees.pdf")
        page.locator("#documents-status", has_text="Added 1.").wait_for()
        open_quote(page, ask(page, PDF_QUESTION))
        page.locator("canvas").wait_for()
        save(page, folder / "page-source.png")


def take_speed(browser: Any, address: str, folder: Path) -> None:
    """Take a screenshot of the speed view with a comparison."""
    with opened(browser, address) as page:
        ask(page, SPEED_QUESTION)
        page.click("#speed")
        page.get_by_text("Compare with plain decoding").click()
        page.locator(".result").wait_for()
        page.locator(".turn").last.scroll_into_view_if_needed()
        save(page, folder / "page-speed.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
