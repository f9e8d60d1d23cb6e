"""The page at /, and the files that it is made of: they ship with the package and need no other place.

They hold nothing of documents or answers, so whoever reaches the server may have them.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.responses import FileResponse
from starlette.staticfiles import StaticFiles

FILES = Path(__file__).with_name("web")

router = APIRouter(include_in_schema=False)


@router.get("/")
def page() -> FileResponse:
    """The page."""
    return FileResponse(FILES / "index.html")


@router.get("/docs")
def addresses() -> FileResponse:
    """The addresses of the server, for people."""
    return FileResponse(FILES / "docs.html")


def add_files(app: FastAPI) -> None:
    """Serve the page's files."""
    app.mount("/static", StaticFiles(directory=FILES))
