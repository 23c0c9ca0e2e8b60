"""Where a server may listen, by what keeps strangers out."""

from __future__ import annotations

import pytest

from stelae.launch.binding import check_binding, is_loopback
from stelae.model.errors import InvalidArgument

OWN = ("127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST", "localhost.", "::1", "::ffff:127.0.0.1")
OPEN = (
    "0.0.0.0",
    "::",
    "10.0.0.1",
    "192.168.1.1",
    "db1",
    "db1.example",
    "::ffff:10.0.0.1",
    "fe80::1",
    "localhost.evil",
)


@pytest.mark.parametrize("host", OWN)
def test_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", OPEN)
def test_other_machines_too(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("listen", "token", "tls", "insecure", "outcome"),
    [
        ("127.0.0.1:0", False, False, False, ""),
        ("[::1]:7000", False, False, False, ""),
        ("localhost:7000", False, False, True, ""),
        ("127.0.0.1:0", True, True, False, ""),
        ("0.0.0.0:7000", True, True, False, ""),
        ("0.0.0.0:7000", True, True, True, ""),
        ("0.0.0.0:7000", False, False, False, None),
        ("0.0.0.0:7000", True, False, False, None),
        ("0.0.0.0:7000", False, True, False, None),
        ("db1:7000", False, False, False, None),
        ("[::]:7000", False, False, False, None),
        ("0.0.0.0:7000", False, False, True, "TLS and token"),
        ("0.0.0.0:7000", True, False, True, "TLS"),
        ("0.0.0.0:7000", False, True, True, "token"),
    ],
)
def test_what_a_server_may_do_without(listen: str, token: bool, tls: bool, insecure: bool, outcome: str | None) -> None:
    if outcome is None:
        with pytest.raises(InvalidArgument, match=r"is reached from other machines, and there is no .* 127\.0\.0\.1"):
            check_binding(listen, has_token=token, has_tls=tls, insecure=insecure)
    else:
        assert check_binding(listen, has_token=token, has_tls=tls, insecure=insecure) == outcome


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="is not host:port"):
        check_binding("nowhere", has_token=True, has_tls=True, insecure=True)
