"""What a check asks the leading master: which files lie on the store that no shard needs. No shard knows by itself."""

from __future__ import annotations

from typing import Any

import msgspec

from stelae.service.bodies import Bytes, codec_of
from stelae.service.deadlines import Deadline
from stelae.service.messages import NothingMessage
from stelae.service.operations import Asked, Operation
from stelae.service.reports import Progress


class UnneededFiles(msgspec.Struct, frozen=True):
    """`put_off`: why the collection, which would remove them, was put off, and since how many seconds; empty: it was
    not."""

    count: int
    size_bytes: int
    put_off: str = ""
    put_off_s: float = 0.0


def _ask() -> Asked:
    return NothingMessage(), b""


def _carry_out(master: Any, _: Any, __: Bytes, until: Deadline | None, ___: Progress) -> UnneededFiles:
    return master.unneeded_files(deadline=until)


UNNEEDED: Operation[[], UnneededFiles] = Operation(
    "unneeded_files",
    NothingMessage,
    _ask,
    _carry_out,
    codec_of("which files nobody needs", UnneededFiles),
    is_long=True,
)
