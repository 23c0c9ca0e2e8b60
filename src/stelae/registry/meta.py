"""Tablet configs as rows of the META tables, and which table holds whose.

The configs of users' tablets are rows of `meta1`, those of meta1's own tablets are rows of `meta0`, which is one tablet
that never splits; meta0's own config is a key of the metastore. A tablet's row sorts by table and by where its range
ends, so the tablet of a row is the first at or behind it:

    row = table id (16 hex digits) " " end of the range        tablets with an end
          table id (16 hex digits) "!"                          the last tablet of a table

| cell | what |
|---|---|
| `first:` | where the range begins: the end of the tablet before, empty for the first |
| `location:` | the server that has the tablet, empty if none |
| `log:` | the log that holds what its files do not |
| `fragments:{group}` | references to files, oldest first |
| `config:` | the rest: ids, schema version, what is flushed, floors, loads, epoch and resize number |

META tables are ordinary ones but for their fixed ids and schema, which no catalog lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from stelae.model.declare import cells, declare
from stelae.model.errors import Corruption
from stelae.model.ids import GroupId, Row, TableId
from stelae.model.mutation import Erase, Mutation, PutCell, WholeRow
from stelae.model.ranges import RowRange
from stelae.model.schema import TableSchema
from stelae.storage.tablet.config import SavedGroups, SavedRef, TabletConfig, decode_config, encode_config

META0 = TableId(2**62)
META1 = TableId(2**62 + 1)
ROOT_CONFIG_KEY = "meta/root"
FAMILIES = ("first", "location", "log", "fragments", "config")

META_SCHEMA: TableSchema = declare(
    {"tablet": "binary"}, [cells("tablet", families=list(FAMILIES), purge="max-history=1")]
)

_ENCODER = msgspec.json.Encoder(order="deterministic")
_REFS = msgspec.json.Decoder(tuple[SavedRef, ...])


def parent_of(table: TableId) -> TableId | None:
    """Which table holds the configs of a table's tablets; None: the metastore does."""
    if table == META0:
        return None
    return META0 if table == META1 else META1


def meta_row(table: TableId, rows: RowRange) -> Row:
    end = b"!" if rows.stop is None else b" " + rows.stop
    return Row(f"{table:016x}".encode() + end)


def to_mutations(config: TabletConfig, location: str) -> list[Mutation]:
    """The row as it is to be; cells of groups that are gone go with the whole row, which is written anew."""
    row = meta_row(config.table, config.rows)
    bare = msgspec.structs.replace(config, groups=())
    values = {
        ("first", ""): config.rows.start,
        ("location", ""): location.encode(),
        ("log", ""): config.log.encode(),
        ("config", ""): encode_config(bare),
        **{("fragments", str(group)): _ENCODER.encode(refs) for group, refs in config.groups},
    }
    return [Erase(row, WholeRow()), *(PutCell(row, family, name, value) for (family, name), value in values.items())]


def removal(table: TableId, rows: RowRange) -> Mutation:
    return Erase(meta_row(table, rows), WholeRow())


def from_cells(row: bytes, found: Mapping[str, bytes]) -> TabletConfig:
    """A config from the cells of its row, by `family:qualifier`."""
    where = f"META row {row!r}"
    try:
        config = decode_config(found["config:"], where)
    except KeyError:
        raise Corruption("the row of a tablet has no config", where) from None
    groups = []
    for name, value in sorted(found.items()):
        family, _, group = name.partition(":")
        if family == "fragments":
            groups.append((GroupId(_number(group, where)), _refs(value, where)))
    complete: SavedGroups = tuple(sorted(groups))
    if meta_row(config.table, config.rows) != row or found.get("first:") != config.rows.start:
        raise Corruption(f"the row is not that of tablet {config.tablet}, {config.rows}, which it describes", where)
    return msgspec.structs.replace(config, groups=complete)


def _number(text: str, where: str) -> int:
    if not text.isdigit():
        raise Corruption(f"{text!r} is no group", where)
    return int(text)


def _refs(value: bytes, where: str) -> tuple[SavedRef, ...]:
    try:
        return _REFS.decode(value)
    except msgspec.MsgspecError as error:
        raise Corruption(f"a list of fragments cannot be read: {error}", where) from None


def by_parent(configs: Iterable[TabletConfig]) -> dict[TableId | None, list[TabletConfig]]:
    parted: dict[TableId | None, list[TabletConfig]] = {}
    for config in configs:
        parted.setdefault(parent_of(config.table), []).append(config)
    return parted
