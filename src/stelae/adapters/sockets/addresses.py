"""`host:port` as text, and what it says."""

from __future__ import annotations

import ipaddress
import re

from stelae.model.errors import InvalidArgument

PORT_MAX = 0xFFFF
_PORT = re.compile(r"[0-9]{1,5}")
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9_])?\.?")


def host_and_port(address: str) -> tuple[str, int]:
    """Of `db1:7000`, `10.0.0.1:7000` and `[2001:db8::1]:7000`. InvalidArgument for anything else."""
    host, colon, port = address.rpartition(":")
    if not colon or not _PORT.fullmatch(port) or int(port) > PORT_MAX:
        raise InvalidArgument(f"{address!r} is not host:port, as in db1:7000 or [::1]:7000")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_version_6(host):
            raise InvalidArgument(f"{address!r}: {host!r} is not an IPv6 address")
    elif ":" in host:
        raise InvalidArgument(f"{address!r}: an IPv6 address stands in brackets: [{host}]:{port}")
    elif not _NAME.fullmatch(host):
        raise InvalidArgument(f"{address!r}: {host!r} is not the name or number of a host")
    return host, int(port)


def with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _is_version_6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
