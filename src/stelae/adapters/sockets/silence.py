"""Whether the peer of a TCP connection has fallen silent: a machine without power, or cut off.

A peer that does not read for a while is no such: its system still acknowledges what it is sent, or says again and again
that it has no room. `TCP_USER_TIMEOUT` does not tell these apart (Linux ends a connection whose peer has had no room
for that long), so it is not used: what Linux knows about acknowledgements (`TCP_INFO`) is looked at instead, and
elsewhere there is only the system's own patience. Where nothing is on its way keepalive notices the silence.
"""

from __future__ import annotations

import socket
import struct

SILENCE_S = 10.0
KEEPALIVE_S = 5
KEEPALIVE_PROBES = 3
UNSENT_BYTES_MAX = 512 * 1024
"""What the system takes before the peer has room for it; its own bound is several times that."""

_INFO = struct.Struct("4B52xI")
"""State, congestion state, repeats and probes without an answer; milliseconds since the last acknowledgement."""

_UNANSWERED_MIN = 2
"""One may just be on its way."""

_FIN_UNANSWERED = (4, 9, 11)
"""The states in which the peer has not acknowledged that this side has ended: FIN_WAIT1, LAST_ACK, CLOSING."""


def prepare_tcp(opened: socket.socket) -> None:
    """Send at once, leave little to the system that the peer has no room for, and notice a peer that is gone although
    nothing is sent to it."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NOTSENT_LOWAT", UNSENT_BYTES_MAX),
        ("TCP_KEEPIDLE", KEEPALIVE_S),
        ("TCP_KEEPALIVE", KEEPALIVE_S),  # the same, on macOS
        ("TCP_KEEPINTVL", KEEPALIVE_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def is_silent(opened: socket.socket) -> bool:
    """Nothing was acknowledged for `SILENCE_S`, although it should have been."""
    info = _info(opened)
    return info is not None and says_silence(info)


def says_silence(info: bytes) -> bool:
    _, _, repeats, probes, acknowledged_ms = _INFO.unpack(info)
    return max(repeats, probes) >= _UNANSWERED_MIN and acknowledged_ms >= SILENCE_S * 1_000


def has_all(opened: socket.socket) -> bool:
    """The peer's system has everything that was sent, the end included. False where that is not known."""
    info = _info(opened)
    return info is not None and info[0] not in _FIN_UNANSWERED


def _info(opened: socket.socket) -> bytes | None:
    if not hasattr(socket, "TCP_INFO"):
        return None
    try:
        return opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
    except OSError:  # it is closed by now
        return None
