"""Which tablets are here: all that was installed, or nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from stelae.model.declare import columns, declare
from stelae.model.errors import InvalidArgument, TabletAway
from stelae.model.ids import Row, TableId, TabletId
from stelae.model.ranges import RowRange
from stelae.storage.tablet.maps import TabletMap
from stelae.storage.tablet.state import TabletState, new_tablet

SCHEMA = declare({"k": "string"}, [columns("g", {"v": "int64"})])
ONE, TWO = TableId(1), TableId(2)


def tablet(number: int, start: bytes, stop: bytes | None, table: TableId = ONE) -> TabletState:
    return new_tablet(TabletId(number), table, RowRange(Row(start), None if stop is None else Row(stop)), SCHEMA)


def seen(tablets: TabletMap) -> list[object]:
    at: list[object] = [sorted(tablets.states.items()), tablets.of_table(ONE), tablets.of_table(TWO)]
    looks: list[Callable[[], TabletState]] = [lambda: tablets.at(ONE, b"a"), lambda: tablets.at(ONE, b"n")]
    looks += [lambda: tablets.before(ONE, None), lambda: tablets.before(TWO, None)]
    for look in looks:
        try:
            at.append(look())
        except TabletAway as error:
            at.append(str(error))
    return at


def filled() -> TabletMap:
    tablets = TabletMap()
    tablets.install([tablet(1, b"", b"m"), tablet(2, b"m", None), tablet(3, b"", None, TWO)], [])
    return tablets


@pytest.mark.parametrize(
    "states, removed",
    [
        ([tablet(4, b"a", b"b")], []),
        ([tablet(4, b"a", b"b"), tablet(5, b"m", None)], [2]),
        ([tablet(3, b"", b"z", TWO), tablet(1, b"", b"n")], []),
        ([tablet(4, b"", b"k"), tablet(5, b"j", b"m")], [1, 3]),
        ([tablet(4, b"", b"k"), tablet(1, b"", b"m")], [1]),
    ],
    ids=["over one", "over another", "a longer one", "over each other", "removed and there again"],
)
def test_what_overlaps_changes_nothing(states: list[TabletState], removed: list[int]) -> None:
    tablets = filled()
    before = seen(tablets)
    with pytest.raises(InvalidArgument, match="overlap"):
        tablets.install(states, [TabletId(number) for number in removed])
    assert seen(tablets) == before


def test_what_is_installed_is_found() -> None:
    tablets = filled()
    left, right, other = tablet(4, b"", b"g"), tablet(5, b"g", b"m"), replace(tablets.state(TabletId(3)), resize=7)
    tablets.install([right, left, other], [TabletId(1), TabletId(9)])
    assert tablets.of_table(ONE) == [left, right, tablets.state(TabletId(2))]
    assert tablets.at(ONE, b"a") is left
    assert tablets.at(ONE, b"g") is tablets.before(ONE, b"m") is right
    assert tablets.at(TWO, b"g") is other
    with pytest.raises(TabletAway):
        tablets.state(TabletId(1))
    tablets.install([], [TabletId(3)])
    assert tablets.of_table(TWO) == []
    with pytest.raises(TabletAway):
        tablets.at(TWO, b"")
