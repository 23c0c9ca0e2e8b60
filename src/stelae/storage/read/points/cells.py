"""Rows of one group of cells: see `points`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stelae.model.ids import Row
from stelae.model.predicate.selectors import Selectors
from stelae.model.purge import GroupPurging, purging_at, purging_of
from stelae.model.ranges import single
from stelae.model.record import Kind
from stelae.storage.files.fragments import Fragment, Fragments
from stelae.storage.memory.cells import CellVersion, MemoryOfCells
from stelae.storage.merge.rule import Erased, Written, survivors
from stelae.storage.read.asking import Asking, Version
from stelae.storage.tablet.parts import NO_FAMILY, FamilySet
from stelae.storage.tablet.state import Ref


class CellsReader:
    def __init__(
        self,
        refs: Sequence[Ref],
        fragments: Fragments,
        columns: Selectors,
        exists: bool,
        purging: GroupPurging,
    ) -> None:
        self._refs = [
            (ref, fragments.of(ref.file) if ref.file is not None else None)
            for ref in refs
            if isinstance(ref.part, FamilySet)
        ]
        self._selectors = columns
        self._exists = exists
        self._purging = purging

    def _versions(self, row: Row) -> Iterable[CellVersion]:
        for ref, fragment in self._refs:
            if row not in ref.rows:
                continue
            if isinstance(ref.source, MemoryOfCells):
                versions: Iterable[CellVersion] = ref.source.versions_of(row)
            elif fragment is not None:
                versions = _cells_in_file(fragment, row)
            else:
                versions = ()
            for version in versions:
                if version.kind is Kind.ERASE_ROW:
                    yield version
                elif isinstance(ref.part, FamilySet) and version.family in ref.part:
                    yield version._replace(family=ref.naming.now(version.family))

    def _wants(self, family: str, qualifier: str) -> bool:
        if family == NO_FAMILY:
            return self._exists
        name = f"{family}:{qualifier}"
        return any(selector.matches(name) for selector in self._selectors)

    def history(self, row: Row, asking: Asking, limit: int) -> dict[tuple[str, str], tuple[Version, ...]]:
        everywhere: list[Erased] = []
        of_family: dict[str, list[Erased]] = {}
        of_cell: dict[tuple[str, str], tuple[list[Written], list[Erased]]] = {}
        for version in self._versions(row):
            if not asking.floor <= version.txn <= asking.at:
                continue
            erased = Erased(version.ts, version.txn, version.kind is Kind.ERASE_VERSION)
            match version.kind:
                case Kind.ERASE_ROW:
                    everywhere.append(erased)
                case Kind.ERASE_FAMILY:
                    of_family.setdefault(version.family, []).append(erased)
                case _ if not self._wants(version.family, version.qualifier):
                    continue
                case Kind.PUT:
                    cell = of_cell.setdefault((version.family, version.qualifier), ([], []))
                    cell[0].append(Written(version.ts, version.txn, version.value))
                case Kind.ERASE_COLUMN | Kind.ERASE_VERSION:
                    of_cell.setdefault((version.family, version.qualifier), ([], []))[1].append(erased)
        result = {}
        for key in sorted(of_cell):
            puts, cell_erased = of_cell[key]
            if puts:
                all_erased = [*cell_erased, *everywhere, *of_family.get(key[0], ())]
                policy = purging_at(purging_of(self._purging, key[0]), asking.at)
                alive = survivors(puts, all_erased, policy, asking.read_us)
                kept = [Version(*put) for put in alive if put.ts in asking.time][:limit]
                if kept:
                    result[key] = tuple(kept)
        return result


def _cells_in_file(fragment: Fragment, row: Row) -> Iterable[CellVersion]:
    needed = fragment.needed(())
    for number in fragment.reader.blocks_of(single(row)):
        block = fragment.cached(number, needed)
        if block is None:
            if not fragment.reader.may_contain(row, number):
                continue
            block = fragment.block(number, needed, keep=True)
        for at in range(*block.find(row)):
            yield block.cell_version(at)
