"""A corpus of Office files, e-mail and a scanned PDF about an invented ferry company, with 30 questions.

python -m benchmarks.office_files FOLDER
python -m benchmarks.answers FOLDER
"""

from __future__ import annotations

import csv
import io
import mailbox
import shutil
from collections.abc import Callable, Iterator, Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import office_texts as texts
from benchmarks.program import program

QUESTIONS = Path(__file__).with_name("office_questions.jsonl")
CORPUS = "office"
_SCAN_SIZE = 1240, 1754  # A4 at 150 dpi
_DATE = "Mon, 04 Mar 2024 09:00:00 +0000"


def write_office_corpus(folder: Path) -> None:
    """Write the files of the corpus into a subfolder, and the questions next to it.

    Args:
        folder: The folder; `python -m benchmarks.answers` takes it.
    """
    (folder / CORPUS).mkdir(parents=True, exist_ok=True)
    shutil.copy(QUESTIONS, folder / "questions.jsonl")
    for name, write in _FILES.items():
        write(folder / CORPUS / name)


def _write_rules(path: Path) -> None:
    from docx import Document

    document = Document()
    document.core_properties.title = "Rules for crews"
    for block in texts.RULES.strip().split("\n\n"):
        if block.startswith("#"):
            marks, _, title = block.partition(" ")
            document.add_heading(title, len(marks))
        elif block.startswith("- "):
            for item in block.splitlines():
                document.add_paragraph(item.removeprefix("- "), style="List Bullet")
        else:
            document.add_paragraph(" ".join(block.split()))
    table = document.add_table(0, len(texts.ALLOWANCES[0]))
    for row in texts.ALLOWANCES:
        for cell, value in zip(table.add_row().cells, row, strict=True):
            cell.text = value
    document.save(str(path))


def _write_slides(path: Path) -> None:
    from pptx import Presentation

    presentation = Presentation()
    for title, points, notes in texts.SLIDES:
        slide = presentation.slides.add_slide(presentation.slide_layouts[1])
        slide.shapes.title.text = title
        slide.placeholders[1].text = "\n".join(points)
        slide.notes_slide.notes_text_frame.text = notes
    presentation.save(str(path))


def _write_fares(path: Path) -> None:
    from openpyxl import Workbook

    book = Workbook()
    book.remove(book.active)
    for title, rows in (("Fares", texts.fares()), ("Departures", texts.DEPARTURES), ("Ships", texts.SHIPS)):
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)


def _write_crew(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=";").writerows(texts.CREW)


def _message(subject: str, sender: str, text: str) -> EmailMessage:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"], message["Date"] = (
        subject,
        sender,
        "office@kestrel.example",
        _DATE,
    )
    message.set_content(text.strip())
    return message


def _write_mailbox(path: Path) -> None:
    path.unlink(missing_ok=True)
    box = mailbox.mbox(path)
    for subject, sender, text in texts.MAILS:
        message = _message(subject, sender, text)
        if "attached" in text:
            out = io.StringIO()
            csv.writer(out).writerows(texts.FUEL)
            message.add_attachment(out.getvalue(), subtype="csv", filename="fuel.csv")
        box.add(message)
    box.close()


def _write_complaint(path: Path) -> None:
    subject = "Complaint about the crossing on 17 February"
    message = _message(subject, "Ada Wren <ada@wren.example>", "See the HTML part.")
    message.add_alternative(texts.COMPLAINT, subtype="html")
    path.write_bytes(bytes(message))


def _write_scan(path: Path) -> None:
    images = list(_scanned_pages(texts.SCAN))
    images[0].save(path, "PDF", save_all=True, append_images=images[1:], resolution=150)  # type: ignore[attr-defined]


def _scanned_pages(pages: Sequence[str]) -> Iterator[object]:
    """Yield a slightly rotated, grey picture of each page."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSerif.ttf"), 25)
    for page in pages:
        image = Image.new("L", _SCAN_SIZE, 244)
        draw = ImageDraw.Draw(image)
        for place, line in enumerate(page.strip().splitlines()):
            draw.text((130, 160 + 42 * place), line, fill=40, font=font)
        yield image.rotate(0.4, resample=Image.Resampling.BICUBIC, fillcolor=244)


_FILES: dict[str, Callable[[Path], None]] = {
    "crew-rules.docx": _write_rules,
    "season.pptx": _write_slides,
    "fares.xlsx": _write_fares,
    "crew.csv": _write_crew,
    "inbox.mbox": _write_mailbox,
    "complaint.eml": _write_complaint,
    "inspection.pdf": _write_scan,
}


def office_files(folder: Annotated[Path, typer.Argument(help="Where to write the corpus and its questions.")]) -> None:
    """Write a corpus of Office files, e-mail and a scanned PDF, and its questions."""
    write_office_corpus(folder)


app = program(office_files)

if __name__ == "__main__":
    app()
