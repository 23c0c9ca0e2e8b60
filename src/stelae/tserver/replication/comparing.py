"""Replicas compared, for a check: each with what its disk has of it, and each leader's with those of the other members.

Nothing is stopped meanwhile. What a member is known to have when its leader looks, it still has when it is asked,
unless another leads by then: what is not the same for that reason is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from stelae.format.log.positions import POSITION_MIN
from stelae.format.log.records import LogRecord
from stelae.model.errors import StelaeError
from stelae.model.ids import Index, TableId, TabletId
from stelae.registry.replication.comparing import TABLETS_MAX
from stelae.registry.replication.members import server_of
from stelae.service.reports import Problem
from stelae.storage.replicas.comparing import ReplicaImage, find_differences, image_of
from stelae.storage.replicas.reading import take_record
from stelae.storage.replicas.replica import Replica
from stelae.storage.shard import Shard
from stelae.tserver.replication.leading import Leading

AskImages = Callable[[str, Sequence[TabletId]], Sequence[ReplicaImage | None]]
"""What the shard with that replica says of tablets; None: it has none of the tablet."""

_REMEDY = (
    "Stop the node of {server}, move the shard's directory away, and start it again: it is filled anew from the "
    "others. If it is the one that leads, look at the others first: the bytes that most of them have are right"
)


class OnDisk:
    """Replicas as the log on the disk has them, beside those in memory. Made before the log is read; takes its records
    in their order."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        with shard.lock:
            self._before = {tablet: (replica, image_of(replica)) for tablet, replica in shard.replicas.items()}
            self._unwritten = {tablet for tablet, replica in shard.replicas.items() if replica.is_unwritten}
        shard.drain()
        self._found: dict[TabletId, Replica] = {}

    def take(self, records: Iterable[LogRecord]) -> None:
        for record in records:
            if record.tablet in self._before:
                take_record(self._found, record, POSITION_MIN)

    def problems(self) -> list[Problem]:
        shard, problems = self._shard, list[Problem]()
        for tablet, (replica, before) in self._before.items():
            with shard.lock:
                is_same = shard.replicas.get(tablet) is replica and replica.promised == before.promised
                is_same = is_same and tablet not in self._unwritten and not replica.is_unwritten
                last = replica.last.index
            if not is_same or (before.records and last < before.records[-1].index):
                continue  # it was changed meanwhile, or the disk has refused something, which is told elsewhere
            found, where = self._found.get(tablet), f"tablet {tablet} on {shard.name}"
            if found is None:
                problems.append(_problem(where, shard.name, "the log has nothing of it"))
                continue
            upto = before.records[-1].index if before.records else 0
            for words in find_differences(before, image_of(found), upto):
                problems.append(
                    _problem(where, shard.name, f"the log on the disk differs from what is in memory: {words}")
                )
        return problems


class _Expected(msgspec.Struct, frozen=True):
    """What a member is known to have of a tablet that is led here."""

    tablet: TabletId
    table: TableId
    epoch: int
    image: ReplicaImage
    upto: Index


def compare_members(leading: Leading, shard: Shard, ask: AskImages, name_of: Callable[[TableId], str]) -> list[Problem]:
    """What the other members of the tablets that are led here have otherwise."""
    problems: list[Problem] = []
    for member, expected in _expected(leading, shard).items():
        for at in range(0, len(expected), TABLETS_MAX):
            some = expected[at : at + TABLETS_MAX]
            try:
                images = ask(member, [each.tablet for each in some])
            except StelaeError as error:
                where = f"replicas on {server_of(member)}"
                problems.append(Problem("replica", where, f"cannot be compared with those on {shard.name}: {error}"))
                continue
            for each, image in zip(some, images, strict=False):
                if _is_member(leading, shard, member, each):
                    where = f"{name_of(each.table)}, tablet {each.tablet} on {server_of(member)}"
                    problems += _compare(where, server_of(member), shard.name, each, image)
    return problems


def _expected(leading: Leading, shard: Shard) -> Mapping[str, list[_Expected]]:
    found: dict[str, list[_Expected]] = {}
    with shard.lock:
        for led in leading.led.values():
            image = image_of(led.replica)
            for name, member in led.others.items():
                if not member.is_pending and name in led.lead.members:
                    expected = _Expected(led.tablet, led.table, led.lead.epoch, image, member.matched)
                    found.setdefault(name, []).append(expected)
    return found


def _is_member(leading: Leading, shard: Shard, name: str, expected: _Expected) -> bool:
    """Whether it is so still: nobody else leads, and the member was not dropped."""
    with shard.lock:
        led = leading.led.get(expected.tablet)
        return led is not None and led.lead.epoch == expected.epoch and name in led.lead.members


def _compare(
    where: str, server: str, leader: str, expected: _Expected, image: ReplicaImage | None
) -> Iterable[Problem]:
    if image is None:
        yield _problem(
            where, server, f"it has nothing of the tablet, and is a member of it, as {leader} knows, which leads"
        )
    elif image.promised <= expected.epoch:
        for words in find_differences(expected.image, image, expected.upto):
            yield _problem(where, server, f"it differs from the one on {leader}, which leads: {words}")


def _problem(where: str, server: str, words: str) -> Problem:
    return Problem("replica", where, f"{words}. {_REMEDY.format(server=server)}")
