"""Report the state of the server to systemd, and use the socket that systemd has opened."""

from __future__ import annotations

import logging
import os
import socket

FIRST_DESCRIPTOR = 3
"""The file descriptor of the first socket that systemd passes."""

logger = logging.getLogger("antiphon.server")


def notify_service_manager(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd's ``NOTIFY_SOCKET``; do nothing if that variable is not set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    abstract = address.startswith("@")  # a name in Linux' abstract namespace, which begins with a zero byte
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), f"\0{address[1:]}" if abstract else address)
    except OSError as error:
        logger.warning("systemd is not told %s: %s", state, error)


def inherited_socket() -> socket.socket | None:
    """Return the socket at which systemd listens for this process, or None.

    systemd keeps the socket open while the service restarts, so clients wait instead of being refused.

    Raises:
        ValueError: systemd passes several sockets, or one that is not a TCP socket.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return None
    count = int(os.environ.get("LISTEN_FDS", "0"))
    if count != 1:
        raise ValueError(f"systemd passes {count} sockets; the server needs one ListenStream= in its socket unit.")
    found = socket.socket(fileno=os.dup(FIRST_DESCRIPTOR))
    if found.family not in (socket.AF_INET, socket.AF_INET6):
        raise ValueError(f"systemd passes a socket of {found.family.name}; set ListenStream= to an address and a port.")
    return found
