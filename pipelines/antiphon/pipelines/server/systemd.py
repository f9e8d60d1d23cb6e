"""What systemd and the server tell each other: the state of the service, and a socket that systemd listens at."""

from __future__ import annotations

import logging
import os
import socket

FIRST_DESCRIPTOR = 3
"""The file descriptor of the first socket that systemd passes."""

logger = logging.getLogger("antiphon.server")


def notify_service_manager(state: str) -> None:
    """Send a state such as ``READY=1`` to systemd, which names its socket in ``NOTIFY_SOCKET``; else do nothing."""
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
    """Return the socket that systemd listens at for this process, or None.

    systemd keeps it open while the service restarts, so clients wait for the new process and are not refused.

    Raises:
        ValueError: systemd passes several sockets, or one that is not of TCP.
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
