"""Where a server may listen, by what keeps strangers out."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address

from stelae.adapters.sockets.addresses import host_and_port
from stelae.model.errors import InvalidArgument

_OWN_NAMES = ("localhost", "localhost.")


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach it. Of other names than its own nobody knows before they are asked
    for, so they are not."""
    if host.lower() in _OWN_NAMES:
        return True
    try:
        number = ip_address(host)
    except ValueError:
        return False
    if isinstance(number, IPv6Address) and number.ipv4_mapped is not None:
        number = number.ipv4_mapped
    return number.is_loopback


def check_binding(listen: str, *, has_token: bool, has_tls: bool, insecure: bool) -> str:
    """Words for what is missing and was waived; empty: nothing is. InvalidArgument if something is that was not: a
    server that other machines reach has TLS and a token, or was told to do without."""
    host, _ = host_and_port(listen)
    missing = [what for what, is_there in (("TLS", has_tls), ("token", has_token)) if not is_there]
    if not missing or is_loopback(host):
        return ""
    words = " and ".join(missing)
    if not insecure:
        raise InvalidArgument(
            f"{listen} is reached from other machines, and there is no {' and no '.join(missing)}: give "
            f"{'both' if len(missing) > 1 else 'it'} (STELAE_TOKEN_FILE; STELAE_TLS_CA, STELAE_TLS_CERT, "
            "STELAE_TLS_KEY), listen on 127.0.0.1, or say insecure if whoever reaches it may do everything"
        )
    return words
