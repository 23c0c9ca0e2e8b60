"""The bytes of a tablet's config, and the one thing that whoever passes them on wants to know of them: its rows. What a
tablet's state needs is not loaded for that (`config`)."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from stelae.model.errors import Corruption, UnsupportedFormat
from stelae.model.ranges import RowRange

CONFIG_VERSION = 1

T = TypeVar("T")


class _Rows(msgspec.Struct, frozen=True):
    rows: RowRange


_ROWS = msgspec.json.Decoder(_Rows)


def rows_of_config(data: bytes, where: str) -> RowRange:
    return read_config(_ROWS, data, where).rows


def read_config(decoder: msgspec.json.Decoder[T], data: bytes, where: str) -> T:
    """UnsupportedFormat, Corruption: what is wrong with the config that was found `where`."""
    try:
        version = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("version", msgspec.Raw(b"0"))
        if msgspec.json.decode(version, type=int) != CONFIG_VERSION:
            raise UnsupportedFormat(
                f"{where}: a tablet's config of version {bytes(version).decode()}; this release "
                f"reads version {CONFIG_VERSION}"
            )
        return decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Corruption(f"the tablet's config cannot be read: {error}", where) from None
