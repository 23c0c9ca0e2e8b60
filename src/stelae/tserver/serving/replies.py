"""What answers are made of, and the functions that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import msgspec

from stelae.service import bodies as bodies
from stelae.service import messages as m
from stelae.service.backend import Backend
from stelae.service.reports import Progress


class Reply(NamedTuple):
    """An answer, or one item of a stream."""

    message: msgspec.Struct
    body: bytes | memoryview = b""


Call: TypeAlias = Callable[[Backend, Any, bytes | memoryview], Reply]
Stream: TypeAlias = Callable[[Backend, Any, bytes | memoryview], Iterator[Reply]]
Watched: TypeAlias = Callable[[Backend, Any, Progress], bytes]

DONE = Reply(m.NothingMessage())


def in_pieces(parts: Iterable[bytes]) -> Iterator[Reply]:
    """Bodies that, joined, are the answer."""
    for piece in bodies.pieces(parts):
        yield Reply(m.PieceItem(), piece)
