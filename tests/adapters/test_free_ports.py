"""Ports that nobody listens on."""

from __future__ import annotations

import socket

import pytest

from stelae.adapters.free_ports import check_free, choose_free, choose_run
from stelae.model.errors import AlreadyExists, InvalidArgument

HOST = "127.0.0.1"


def test_a_port_is_taken_or_free() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AlreadyExists, match=f"{HOST}:{port} is taken"):
            check_free(HOST, port)
        chosen = choose_free(HOST, 2, port)
        assert min(chosen) > port
        assert len(set(chosen)) == 2
    check_free(HOST, port)
    assert len(set(choose_free(HOST, 3))) == 3


def test_what_is_no_port() -> None:
    with pytest.raises(InvalidArgument, match="a port is a number"):
        check_free(HOST, -1)
    with pytest.raises(AlreadyExists, match="no 2 free ports"):
        choose_free(HOST, 2, 65_535)


def test_ports_in_a_row() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        port = taken.getsockname()[1]
        first = choose_run(HOST, 3, port - 1, {port + 2})
        assert first > port + 2
        assert choose_run(HOST, 1, first) == first
    with pytest.raises(AlreadyExists, match="no 3 free ports in a row from 65534 on"):
        choose_run(HOST, 3, 65_534)
