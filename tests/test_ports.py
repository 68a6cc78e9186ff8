"""A port whose derived neighbours are free too."""

from __future__ import annotations

import os
import socket

import pytest

from fixtures.engine import ports


def test_a_port_that_someone_listens_on_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert not ports.is_free("127.0.0.1", port)
        assert ports.holder(port).startswith(f"pid {os.getpid()} (")
    assert ports.is_free("127.0.0.1", port)


def test_a_port_taken_on_every_address_is_not_free_on_one() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        assert not ports.is_free("127.0.0.1", taken.getsockname()[1])


def test_connections_that_linger_do_not_keep_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # the server's side closes first, so it is the one that lingers in TIME_WAIT
        client.close()
    assert ports.is_free("127.0.0.1", port)


def test_the_chosen_port_is_free_with_all_that_sglang_derives_from_it() -> None:
    drawn = iter([21000, 22000, 23000])
    taken = {21000, 22000 + 236}
    chosen = ports.choose("127.0.0.1", draw=lambda low, high: next(drawn), free=lambda host, port: port not in taken)  # noqa: ARG005
    assert chosen == 23000


def test_ports_are_drawn_below_the_ephemeral_range() -> None:
    for _ in range(20):
        assert 20000 <= ports.choose("127.0.0.1") <= 31000


def test_no_free_port_is_a_clear_error() -> None:
    with pytest.raises(ports.NoPortError, match="no free port for a server among 200 tried"):
        ports.choose("127.0.0.1", free=lambda host, port: False)  # noqa: ARG005


def test_nobody_holds_a_free_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert ports.holder(port) == ""
