"""Work on files as values: what is to be merged or flushed, and what was done, as events tell it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stelae.format.fragment.footer import FragmentFile
from stelae.model.events import Compacted, Flushed
from stelae.model.ids import GroupId, TableId
from stelae.storage.memory.memory import Memory
from stelae.storage.merge.records import Keeping
from stelae.storage.tablet.state import Ref, TabletState


@dataclass(frozen=True, slots=True)
class Merge:
    """Files of one group of a tablet that are to become one, and what may be dropped of them."""

    state: TabletState
    group: GroupId
    refs: tuple[Ref, ...]
    files: frozenset[str]
    keeping: Keeping

    def told(self, file: FragmentFile | None, seconds: float) -> Compacted:
        """That the file took the place of all of these; None: nothing was left of them."""
        before = [ref.file for ref in self.refs if ref.file is not None]
        return Compacted(
            table=self.state.table,
            tablet=self.state.tablet,
            group=self.group,
            files=len(before),
            read_records=sum(each.stats.records for each in before),
            read_bytes=sum(each.seal.size_bytes for each in before),
            records=0 if file is None else file.stats.records,
            size_bytes=0 if file is None else file.seal.size_bytes,
            seconds=seconds,
        )


@dataclass(slots=True)
class Flush:
    """A sealed memory that is being written to files, and those that are written already, by group."""

    table: TableId
    memory: Memory
    files: dict[GroupId, FragmentFile] = field(default_factory=dict)


def flush_told(table: TableId, users: Sequence[TabletState], files: Sequence[FragmentFile], seconds: float) -> Flushed:
    """That a memory of these tablets lies in files now."""
    return Flushed(
        table=table,
        tablets=tuple(state.tablet for state in users),
        files=len(files),
        records=sum(file.stats.records for file in files),
        size_bytes=sum(file.seal.size_bytes for file in files),
        seconds=seconds,
    )
