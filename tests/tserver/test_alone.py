"""Servers by themselves: no master, no assembly, two of them in one process."""

from __future__ import annotations

from unittest import mock

import pytest

from stelae.model.errors import Closed, NotFound, TabletAway
from stelae.model.ids import TableId, TabletId
from stelae.model.ranges import ALL_ROWS, RowRange
from stelae.registry.control import CreateTablets, DeleteTablets, HostTablets, NewTablet, SplitTablet, reported_ids
from stelae.tserver.lives import Life
from tests.machines import SimMachine
from tests.tserver.boxes import Box, row

T, U = TableId(100), TableId(101)


@pytest.mark.parametrize("how", ["closed", "kill", "power"])
def test_two_servers_in_one_process(how: str) -> None:
    one, two = Box("one", SimMachine(1), "t", "u"), Box("two", SimMachine(2), "t")
    halves = (NewTablet(TabletId(10), T, RowRange(b"", row(5))), NewTablet(TabletId(11), T, RowRange(row(5), None)))
    assert reported_ids(one.server.ask(CreateTablets((*halves, NewTablet(TabletId(12), U, ALL_ROWS))))) == {10, 11, 12}
    assert reported_ids(two.server.ask(CreateTablets((NewTablet(TabletId(10), T, ALL_ROWS),)))) == {10}
    one.put(T, *range(10), a=1)
    one.put(U, 3, a=2)
    two.put(T, 1, 7, a=3)
    one.server.flush(T)
    one.put(T, 4, 6, a=4)

    def as_written() -> None:
        assert one.rows(T) == dict.fromkeys(range(10), 1) | {4: 4, 6: 4}
        assert one.rows(U) == {3: 2}
        assert two.rows(T) == {1: 3, 7: 3}

    as_written()
    one.reopen(how)
    as_written()
    assert {each.tablet: each.life for each in one.server.tablets(T)} == {10: "ACTIVE", 11: "ACTIVE"}
    assert {each.phase for each in one.server.tablets(T)} == {"unknown"}, "no master has recorded it"
    one.server.ask(SplitTablet(TabletId(11), row(8), TabletId(13), TabletId(14)))
    one.put(T, 8, a=5)
    assert one.rows(T)[8] == 5
    assert two.rows(T) == {1: 3, 7: 3}, "the other goes on"
    one.end()
    with pytest.raises(Closed, match="the box of one is closed"):
        one.put(T, 1, a=1)
    two.put(T, 2, a=6)
    two.end()


def test_a_deleted_tablet_leaves_nothing_but_its_name() -> None:
    box = Box("one", SimMachine(3), "t")
    box.server.ask(CreateTablets((NewTablet(TabletId(10), T, ALL_ROWS),)))
    box.put(T, 1, a=1)
    box.server.flush(T)
    box.server.ask(DeleteTablets((TabletId(10),)))
    assert box.server.life(TabletId(10)) is Life.UNKNOWN
    with pytest.raises(TabletAway):
        box.rows(T)
    while box.server.compact_step():
        pass
    assert box.machine.files() == set()
    del box.tables.named[T]
    with pytest.raises(NotFound, match="was dropped"):
        box.rows(T)
    box.end()


def test_a_request_to_create_that_comes_after_the_one_to_delete_makes_nothing() -> None:
    """It was given up, and another tablet has taken the place of the one that it asks for."""
    box = Box("one", SimMachine(4), "t")
    late = CreateTablets((NewTablet(TabletId(10), T, ALL_ROWS),))
    box.server.ask(DeleteTablets((TabletId(10),)))
    assert reported_ids(box.server.ask(late)) == frozenset()
    assert box.server.life(TabletId(10)) is Life.UNKNOWN
    both = CreateTablets((*late.tablets, NewTablet(TabletId(11), T, ALL_ROWS)))
    assert reported_ids(box.server.ask(both)) == {11}
    box.end()


def test_replicas_that_were_deleted_are_not_hosted_by_a_request_that_comes_late() -> None:
    box = Box("one", SimMachine(5), "t")
    hosting = mock.Mock()
    hosting.reports.return_value, hosting.ask.return_value, hosting.leading.me = (), {}, "one@log"
    box.server.control._hosting = hosting
    tablets = (NewTablet(TabletId(10), T, ALL_ROWS), NewTablet(TabletId(11), T, ALL_ROWS))
    box.server.ask(DeleteTablets((TabletId(10),)))
    box.server.ask(HostTablets(tablets))
    hosting.ask.assert_called_once_with(HostTablets(tablets[1:]))
    box.end()
