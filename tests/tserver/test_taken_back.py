"""A metastore that has lost its newest changes: META, the log and the files know more than the catalog, and say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stelae.model.errors import Corruption
from stelae.model.events import UnknownFilesFound
from stelae.model.ids import TableId, Txn
from stelae.service.tables import AlterAsk, TableInfo
from stelae.storage.files.names import file_name
from stelae.storage.files.trash import TRASH
from tests.machines import copy_of
from tests.tserver.stores import Place, row


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place()
    yield made
    made.close()


Step = Callable[[Place, TableInfo], object]


def make_a_table(place: Place, _: TableInfo) -> None:
    info = place.create("new")
    place.put(info.id, 1)
    place.store.flush(info.id)


def alter(place: Place, info: TableInfo) -> None:
    place.store.alter(info.name, AlterAsk(add={"data": {"b": "int64"}}))
    place.put(info.id, 7)


def split(place: Place, info: TableInfo) -> None:
    place.store.split(info.id, row(2), None)


@pytest.mark.parametrize("how", ["kill", "closed"])
@pytest.mark.parametrize(
    ("step", "words"),
    [
        (make_a_table, "(the log has rows of|META has tablet 17 of) table 17, of which it knows nothing"),
        (alter, "is of schema version 2, and the newest known is 1"),
        (split, "META has tablet 1[78], and the next to be made is 17"),
    ],
)
def test_a_metastore_that_is_older_than_all_else_is_refused(place: Place, step: Step, words: str, how: str) -> None:
    info = place.create("t")
    place.put(info.id, 1, 2, 3)
    older = copy_of(place.machine.metastate)
    step(place, info)
    rows = place.keys(info.id)
    if how == "closed":
        place.store.close()
    place.machine.end(how)
    newer, place.machine.metastate = place.machine.metastate, older
    files, log = place.machine.files(), place.machine.disk.list()
    with pytest.raises(Corruption, match=f"{words}: the metastore was lost in part"):
        place.machine.open(place._settings)
    place.machine.end("kill")
    assert place.machine.files() == files
    assert [each.name for each in place.machine.disk.list()] == [each.name for each in log]
    place.machine.metastate = newer
    place.store = place.machine.open(place._settings)
    assert place.keys(info.id) == rows


def test_nothing_is_collected_beside_files_of_a_table_that_never_was() -> None:
    told: list[object] = []
    place = Place(listener=told.append)
    info = place.create("t")
    place.put(info.id, 1)
    place.store.flush(info.id)
    garbage = file_name(info.id, Txn(1), "0" * 12)
    stranger = file_name(TableId(999), Txn(1), "0" * 12)
    for name in (garbage, stranger):
        writer = place.machine.blobs.create(name)
        writer.commit()
    for _ in range(2):
        assert place.server.upkeep.collect_files() == ()
    with pytest.raises(Corruption, match=f"{stranger}: is of a table that the catalog does not know"):
        place.server.upkeep.collect_files(for_good=True)
    assert {garbage, stranger} <= place.machine.files()
    assert [event for event in told if isinstance(event, UnknownFilesFound)] == [UnknownFilesFound(1, stranger)]
    (problem,) = place.store.check().problems
    assert (problem.where, "of which the catalog knows nothing" in problem.words) == (stranger, True)
    place.machine.blobs.delete(stranger)
    assert place.server.upkeep.collect_files() == (garbage,)
    assert garbage not in place.machine.files()
    assert [info.name.split(".", 1)[1] for info in place.machine.blobs.list(TRASH)] == [
        garbage.removeprefix("fragments/").replace("/", ".")
    ]
    place.close()
