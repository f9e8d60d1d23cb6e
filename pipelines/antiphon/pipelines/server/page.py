"""The web page at / and its static files, which ship with the package.

The files contain no documents and no answers, so they are served without a key.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

FILES = Path(__file__).with_name("web")

router = APIRouter(include_in_schema=False)


@router.get("/")
def page() -> FileResponse:
    """Serve the page."""
    return FileResponse(FILES / "index.html")


@router.get("/docs")
def api_reference() -> FileResponse:
    """Serve the list of endpoints, which the page reads from /openapi.json."""
    return FileResponse(FILES / "docs.html")
