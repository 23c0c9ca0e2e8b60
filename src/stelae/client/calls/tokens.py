"""Page tokens: where a scan stopped, as text that means nothing to anybody else.

A token names the table, the snapshot, the last row that was given out, and in which order rows came. A scan of another
table or order refuses it.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error

import msgspec

from stelae.model.errors import InvalidArgument
from stelae.model.values import show

_MAGIC = "s1."


class PageToken(msgspec.Struct, frozen=True, array_like=True):
    """`row` is the encoded key; where `by_key` it is that of the key without a token of its hash. `given`: how many
    rows came before it, of which a `limit=` counts all."""

    table: int
    txn: int
    row: bytes
    reverse: bool
    by_key: bool
    given: int = 0

    def __str__(self) -> str:
        return _MAGIC + urlsafe_b64encode(msgspec.msgpack.encode(self)).decode("ascii")


_DECODER = msgspec.msgpack.Decoder(PageToken)


def read_token(text: object) -> PageToken:
    if not isinstance(text, str) or not text.startswith(_MAGIC):
        raise InvalidArgument(f"after= is the token that page() gave, not {show(text)}")
    try:
        return _DECODER.decode(urlsafe_b64decode(text.removeprefix(_MAGIC).encode("ascii")))
    except (Base64Error, UnicodeEncodeError, msgspec.DecodeError):
        raise InvalidArgument(f"after=: {show(text)} is no whole token: pass it as page() gave it") from None
