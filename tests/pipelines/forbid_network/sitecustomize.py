"""Refuses name resolution and connections to other machines in every Python process with this folder in PYTHONPATH.

Each attempt is appended to the file that the environment variable NETWORK_LOG names, because libraries hide the error.
"""

import os
import sys
from typing import Any

LOCAL = ("", "localhost", "0.0.0.0", "::", "::1")
RESOLUTIONS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


def forbid(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse an audit event that reaches for another machine."""
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in RESOLUTIONS:
        host = arguments[0]
    else:
        return
    name = (host.decode() if isinstance(host, bytes) else host) or ""
    if name in LOCAL or name.startswith("127."):
        return
    with open(os.environ["NETWORK_LOG"], "a", encoding="utf-8") as log:  # noqa: PTH123  # imported at every start
        log.write(f"{event} {name} of {sys.argv[:3]}\n")
    raise OSError(f"{name} is another machine, and this process may reach none.")


sys.addaudithook(forbid)
