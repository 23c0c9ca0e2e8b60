"""What the master knows of each tablet, one metastore key per tablet: its range, its phase, who has it.

    tablets/{table id, 16 hex digits}/{tablet id, 16 hex digits}

Phases, in the order of a life: PREPARING (thought of; its table may not exist yet), CREATING (a server was chosen, and
asked), RUNNING (that server has reported it). REPLACED: it was not reported in time, another took its place; wherever
it shows up it is deleted. A dropped table's tablets keep their phase: the catalog says that the table is dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, MutableMapping, Sequence
from enum import IntEnum

import msgspec

from stelae.model.errors import Corruption, Unavailable
from stelae.model.ids import TableId, TabletId, Txn
from stelae.model.ranges import RowRange
from stelae.ports.metastore import Change, Compare, DeleteKey, IsAbsent, Metastore, ModRevisionIs, PutKey, Revision
from stelae.registry.decoding import number_of
from stelae.registry.replication.members import server_of

TABLETS_PREFIX = "tablets/"
NEXT_TABLET_KEY = "ids/tablet"
_CHANGES_MAX = 60
"""Of one transaction; each has a compare. Even: pairs of records are written together."""
_PAGE = 1_000
_FIRST_ID = 16


class TabletPhase(IntEnum):
    """How far a tablet has come. The numbers are stored: none may change its meaning."""

    PREPARING = 1
    CREATING = 2
    RUNNING = 3
    REPLACED = 4


class TabletRecord(msgspec.Struct, frozen=True):
    """`since_ms`: when the phase began, by the master's clock. `is_asked`: a user wanted it cut so; it is not joined
    with others because it is small.

    Of a tablet with several replicas, `replicas` are their ids (`replication.members`), and `server` has the one that
    leads; `incarnation`: how often that was started. `epoch` grows with every leader, and every life of one; `version`
    with every change of the replicas. `above`: what the leader gives out and answers lies above this txn."""

    tablet: TabletId
    table: TableId
    rows: RowRange
    phase: TabletPhase
    server: str = ""
    since_ms: int = 0
    is_asked: bool = False
    replicas: tuple[str, ...] = ()
    incarnation: int = 0
    epoch: int = 0
    version: int = 0
    above: Txn = Txn(0)

    @property
    def servers(self) -> tuple[str, ...]:
        """All that have something of it."""
        return tuple(server_of(each) for each in self.replicas) or ((self.server,) if self.server else ())


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(TabletRecord)


def tablet_key(table: TableId, tablet: TabletId) -> str:
    return f"{TABLETS_PREFIX}{table:016x}/{tablet:016x}"


class RecordsChanged(Unavailable):
    """A tablet's record is not as it was known: nothing was written, and it has to be read again."""


async def read_tablets(store: Metastore, table: TableId | None = None) -> list[TabletRecord]:
    """All of them, or a table's, as of one moment, by table and id."""
    return [record for record, _ in await read_revisions(store, table)]


async def read_revisions(store: Metastore, table: TableId | None = None) -> list[tuple[TabletRecord, Revision]]:
    """The same, each with the revision that wrote it."""
    found: list[tuple[TabletRecord, Revision]] = []
    prefix = TABLETS_PREFIX if table is None else f"{TABLETS_PREFIX}{table:016x}/"
    read = await store.range(prefix, limit=_PAGE)
    while True:
        for entry in read.entries:
            try:
                found.append((_DECODER.decode(entry.value), entry.mod_revision))
            except msgspec.MsgspecError as error:
                raise Corruption(f"the record of a tablet cannot be read: {error}", entry.key) from None
        if not read.more:
            return found
        after = read.entries[-1].key + "\0"
        read = await store.range(prefix, start=after, limit=_PAGE, revision=read.revision)


async def write_tablets(
    store: Metastore,
    known: MutableMapping[str, Revision],
    puts: Sequence[TabletRecord],
    removed: Iterable[TabletRecord] = (),
) -> None:
    """In pieces, if there are many: each record is whole, whatever happens in between. `known`: by key, the revisions
    that wrote the records as they are known, which is kept up. RecordsChanged if one was written since: so what is
    sent, and arrives after something else was written, changes nothing."""
    changes: list[Change] = [PutKey(tablet_key(each.table, each.tablet), _ENCODER.encode(each)) for each in puts]
    changes += [DeleteKey(tablet_key(each.table, each.tablet)) for each in removed]
    for at in range(0, len(changes), _CHANGES_MAX):
        some = [each for each in changes[at : at + _CHANGES_MAX] if isinstance(each, PutKey | DeleteKey)]
        outcome = await store.txn([_unchanged(each.key, known.get(each.key)) for each in some], some)
        if not outcome.succeeded:
            raise RecordsChanged("the record of a tablet is not as this master knew it: it is read again")
        for each in some:
            known.pop(each.key, None)
            if isinstance(each, PutKey):
                known[each.key] = outcome.revision


def _unchanged(key: str, revision: Revision | None) -> Compare:
    return IsAbsent(key) if revision is None else ModRevisionIs(key, revision)


def is_only_on(record: TabletRecord, servers: Collection[str]) -> bool:
    """Whether nobody else has anything of the tablet."""
    return bool(record.servers) and all(server in servers for server in record.servers)


def holds_alone(records: Iterable[TabletRecord], server: str) -> bool:
    """Whether a server has tablets, or once had, that nobody else has."""
    return any(is_only_on(record, (server,)) for record in records)


async def read_next_tablet(store: Metastore) -> TabletId | None:
    """No tablet was ever given this id, or a larger one; None if no master has given out any here."""
    entry = await store.get(NEXT_TABLET_KEY)
    return None if entry is None else TabletId(number_of(entry))


async def take_tablet_ids(store: Metastore, count: int) -> list[TabletId]:
    """Ids that nobody has been given, and nobody will be."""
    while True:
        entry = await store.get(NEXT_TABLET_KEY)
        first = _FIRST_ID if entry is None else number_of(entry)
        unchanged = IsAbsent(NEXT_TABLET_KEY) if entry is None else ModRevisionIs(NEXT_TABLET_KEY, entry.mod_revision)
        outcome = await store.txn([unchanged], [PutKey(NEXT_TABLET_KEY, str(first + count).encode())])
        if outcome.succeeded:
            return [TabletId(first + number) for number in range(count)]
