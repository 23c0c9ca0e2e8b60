"""What a table holds, once more and as plainly as it can be said: every commit is kept, and a read replays them.

It shares the words of the model with the engine (mutations, schemas, policies) and none of its code; `lower` least of
all. A read takes the commits it may see, one row and one column at a time, oldest first:

1. drop the versions of which the purge policy is true at the commit's time;
2. drop those the commit erases, then add those it puts, so a commit's erasures never reach its own puts;
3. drop by the policy again.

After the last commit the policy is asked once more, at the time of the read. Only commits that touch the row are looked
at. That is enough: of two versions the older has the greater age and more newer ones, so whatever the policy drops is
the oldest end of the list, and those that stay have as many newer ones as before. Asking at some moment in between thus
drops nothing that asking at the next commit would not drop as well, and leaves the rest as it was.

Decided here, where the words leave it open:
- That a row exists (a put of the key alone) belongs to the row: dropping a group does not take it away. The policy that
  judges it is that of the first group of columns, or where there is none of the first group.
- A declared family that is renamed to a name in use under the wildcard takes the name over: what the wildcard had under
  it is gone for good. Joining both could give two versions of one cell with the same ts and txn.
- A group's options say which policies it had before, and up to which txn each: a commit or read goes by the one of its
  time, and at the end of its time a policy is asked once more. What a schema says of a group counts for all that is in
  the group then: what moves to another group is judged as if it had always been there. A family with a past of its own,
  since it was under the wildcard before it was declared, goes by that first, and only from its end on by the group's.
- A truncation touches every row, so for conflicts it counts as the last commit of each.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from stelae.model.hybrid import micros_of
from stelae.model.ids import TS_MIN, ColumnId, Micros, Row, Txn
from stelae.model.mutation import Cell, Columns, Erase, EraseVersion, Mutation, Put, PutCell, WholeFamily, WholeRow
from stelae.model.predicate.plan import ALL_TIME, TimeRange
from stelae.model.purge import PastPolicy, PurgePolicy, purges
from stelae.model.ranges import RangeSet
from stelae.model.schema import CellsGroup, ColumnsGroup, Group, GroupOptions, TableSchema
from stelae.model.values import Value

Member = ColumnId | str
"""A column or a declared family by its id, a family of the wildcard by its name."""


class Place(NamedTuple):
    """Where versions lie within a row: a column has no qualifier."""

    member: Member
    qualifier: str | None = None


EXISTS = Place("")
"""Where the puts of the key alone lie. No family has an empty name."""


@dataclass(frozen=True, slots=True)
class Version:
    ts: Micros
    txn: Txn
    value: Value


@dataclass(slots=True)
class PlainRow:
    """Versions newest first, by the name of their column or by "family:qualifier". Whatever has none is left out."""

    versions: dict[str, tuple[Version, ...]]


class _Erasure(NamedTuple):
    """Of the whole row (None), a family, or a place: the versions from `first` to `last`, both included."""

    scope: Place | Member | None
    first: Micros
    last: Micros

    def covers(self, place: Place, ts: Micros) -> bool:
        return self.scope in (None, place, place.member) and self.first <= ts <= self.last


class _Touch(NamedTuple):
    """What one commit does to one row. Within it, the last mention wins."""

    txn: Txn
    puts: dict[tuple[Place, Micros], Value]
    erasures: list[_Erasure]

    def erase(self, erasure: _Erasure) -> None:
        self.erasures.append(erasure)
        for place, ts in list(self.puts):
            if erasure.covers(place, ts):
                del self.puts[place, ts]


class PlainTable:
    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.last = Txn(0)
        self._touches: dict[Row, list[_Touch]] = {}
        self._floors: list[Txn] = []

    def commit(self, txn: Txn, mutations: Iterable[Mutation]) -> None:
        """All of it or, if a mutation names what the schema does not have, none (InvalidArgument)."""
        touched: dict[Row, _Touch] = {}
        for mutation in mutations:
            self._mention(touched.setdefault(mutation.row, _Touch(txn, {}, [])), mutation)
        self._move_on(txn)
        for row, touch in touched.items():
            self._touches.setdefault(row, []).append(touch)

    def truncate(self, txn: Txn) -> None:
        """Reads at this txn or later see only what is committed after it."""
        self._move_on(txn)
        self._floors.append(txn)

    def overwrite(self, txn: Txn, mutations: Iterable[Mutation]) -> None:
        """Reads at this txn or later see only what is committed at it or after it."""
        self.commit(txn, mutations)
        self._floors.append(txn)

    def alter(self, schema: TableSchema) -> None:
        """The one schema of all reads from now on, whatever their snapshot. What it no longer has is gone for good."""
        old = _homes(self.schema)
        new = _homes(schema)
        declared = {name: member for member, (name, group) in new.items() if isinstance(group, CellsGroup)}

        def moved(member: Member) -> Member | None:
            """Where the data of a member is found from now on; None if nowhere."""
            if isinstance(member, str) and member in declared:
                return declared[member] if declared[member] not in old else None
            if isinstance(member, str) and member:
                return member if _wildcard(schema) == _wildcard(self.schema) else None
            return member if member in new or member == "" else None

        for row, touches in self._touches.items():
            self._touches[row] = [_moved_touch(touch, moved) for touch in touches]
        self.schema = schema

    def read(
        self,
        at: Txn,
        rows: RangeSet | None = None,
        columns: Collection[str] | None = None,
        time: TimeRange = ALL_TIME,
        history: int = 1,
        read_us: int | None = None,
        having: bool = False,
    ) -> dict[Row, PlainRow]:
        """The rows that exist, in order, with what they have of the columns; `having`: those that have any of them.
        Columns are names, "family:qualifier", or "family:" for all of a family; None is everything. Ages are counted to
        `read_us`, or to the time of `at`."""
        now = micros_of(at) if read_us is None else read_us
        floor = max((floor for floor in self._floors if floor <= at), default=-1)
        homes = _homes(self.schema)
        for name in columns or ():
            self._check_known(name)
        found: dict[Row, PlainRow] = {}
        for row in sorted(self._touches):
            if rows is not None and row not in rows:
                continue
            touches = [touch for touch in self._touches[row] if floor <= touch.txn <= at]
            versions: dict[str, tuple[Version, ...]] = {}
            exists = False
            for place in dict.fromkeys(place for touch in touches for place, _ in touch.puts):
                name = _name(homes, place)
                judged = _alive(place, touches, _options(self.schema, homes, place), at, now)
                alive = [v for v in judged if v.ts in time]
                exists = exists or bool(alive)
                if alive and place != EXISTS and _wants(columns, name):
                    versions[name] = tuple(alive[:history])
            if versions or (exists and not having):
                found[row] = PlainRow(versions)
        return found

    def last_txn(self, row: Row) -> Txn:
        """The latest commit that touched the row in any way, or truncation; 0 if there was none."""
        return max((*self._floors, *(touch.txn for touch in self._touches.get(row, ()))), default=Txn(0))

    def rows(self) -> tuple[Row, ...]:
        """Every row that was ever touched, whether or not it appears."""
        return tuple(sorted(self._touches))

    def _move_on(self, txn: Txn) -> None:
        if txn <= self.last:
            raise ValueError(f"txn {txn} is not above {self.last}, the last one")
        self.last = txn

    def _mention(self, touch: _Touch, mutation: Mutation) -> None:
        now = micros_of(touch.txn)
        match mutation:
            case Put(_, (), ts):
                touch.puts[EXISTS, now if ts is None else ts] = None
            case Put(_, values, ts):
                for id_, value in values:
                    touch.puts[self._column(id_), now if ts is None else ts] = value
            case PutCell(_, family, qualifier, value, ts):
                touch.puts[Place(self._family(family), qualifier), now if ts is None else ts] = value
            case Erase(_, target, until):
                for scope in self._scopes(target):
                    touch.erase(_Erasure(scope, TS_MIN, now if until is None else until))
            case EraseVersion(_, target, ts):
                for scope in self._scopes(target):
                    touch.erase(_Erasure(scope, ts, ts))

    def _scopes(self, target: WholeRow | WholeFamily | Columns | Cell) -> list[Place | Member | None]:
        match target:
            case WholeRow():
                return [None]
            case WholeFamily(family):
                return [self._family(family)]
            case Columns(ids):
                return [self._column(id_) for id_ in ids]
            case Cell(family, qualifier):
                return [Place(self._family(family), qualifier)]

    def _column(self, id_: ColumnId) -> Place:
        return Place(self.schema.column_by_id(id_)[1].id)

    def _family(self, name: str) -> Member:
        group = self.schema.family_group(name)
        return next((family.id for family in group.families if family.name == name), name)

    def _check_known(self, name: str) -> None:
        family, colon, _ = name.partition(":")
        if colon:
            self.schema.family_group(family)
        else:
            self.schema.column(name)


def _homes(schema: TableSchema) -> dict[Member, tuple[str, Group]]:
    """The name and the group of every column and declared family."""
    homes: dict[Member, tuple[str, Group]] = {}
    for group in schema.groups:
        for part in group.columns if isinstance(group, ColumnsGroup) else group.families:
            homes[part.id] = (part.name, group)
    return homes


def _wildcard(schema: TableSchema) -> int | None:
    return next((group.id for group in schema.groups if isinstance(group, CellsGroup) and group.wildcard), None)


def _moved_touch(touch: _Touch, moved: Callable[[Member], Member | None]) -> _Touch:
    """The same touch, of what there still is. One that is left with nothing still touched the row."""
    puts = {}
    for (place, ts), value in touch.puts.items():
        member = moved(place.member)
        if member is not None:
            puts[Place(member, place.qualifier), ts] = value
    erasures = []
    for erasure in touch.erasures:
        match erasure.scope:
            case None:
                erasures.append(erasure)
            case Place(member, qualifier):
                there = moved(member)
                if there is not None:
                    erasures.append(erasure._replace(scope=Place(there, qualifier)))
            case family:
                there = moved(family)
                if there is not None:
                    erasures.append(erasure._replace(scope=there))
    return _Touch(touch.txn, puts, erasures)


def _name(homes: dict[Member, tuple[str, Group]], place: Place) -> str:
    name = place.member if isinstance(place.member, str) else homes[place.member][0]
    return name if place.qualifier is None else f"{name}:{place.qualifier}"


def _wants(columns: Collection[str] | None, name: str) -> bool:
    family, colon, _ = name.partition(":")
    return columns is None or name in columns or (bool(colon) and f"{family}:" in columns)


def _options(schema: TableSchema, homes: dict[Member, tuple[str, Group]], place: Place) -> GroupOptions:
    if place == EXISTS:
        first = next((group for group in schema.groups if isinstance(group, ColumnsGroup)), schema.groups[0])
        return _with_past(first.options, first.options.keys_past)
    if isinstance(place.member, str):
        return schema.family_group(place.member).options
    group = homes[place.member][1]
    family = next((each for each in getattr(group, "families", ()) if each.id == place.member), None)
    return _with_past(group.options, () if family is None else family.past)


def _with_past(options: GroupOptions, own: tuple[PastPolicy, ...]) -> GroupOptions:
    """Of what was judged elsewhere before."""
    since = [past for past in options.past if not own or past.until > own[-1].until]
    return replace(options, past=(*own, *since))


def _alive(place: Place, touches: list[_Touch], options: GroupOptions, at: Txn, now_us: int) -> list[Version]:
    """The versions of one place that are neither erased nor purged, newest first."""

    def of_time(txn: Txn) -> PurgePolicy | None:
        return next((past.policy for past in options.past if txn <= past.until), options.purge)

    ends = [_Touch(past.until, {}, []) for past in options.past if past.until < at]
    alive: list[Version] = []
    for touch in sorted([*touches, *ends], key=lambda touch: touch.txn):
        at_us = micros_of(touch.txn)
        alive = _unpurged(of_time(touch.txn), alive, at_us)
        alive = [v for v in alive if not any(erasure.covers(place, v.ts) for erasure in touch.erasures)]
        alive += [Version(ts, touch.txn, value) for (where, ts), value in touch.puts.items() if where == place]
        alive.sort(key=lambda v: (v.ts, v.txn), reverse=True)
        alive = _unpurged(of_time(touch.txn), alive, at_us)
    return _unpurged(of_time(at), alive, now_us)


def _unpurged(policy: PurgePolicy | None, alive: list[Version], at_us: int) -> list[Version]:
    """All are judged before any is dropped."""
    if policy is None:
        return alive
    return [v for newer, v in enumerate(alive) if not purges(policy, newer, at_us - v.ts)]
