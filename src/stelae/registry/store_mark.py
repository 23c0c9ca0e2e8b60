"""What a store is: its format and its token, written to the metastore once, when the store is made."""

from __future__ import annotations

import msgspec

from stelae.model.errors import UnsupportedFormat
from stelae.ports.metastore import IsAbsent, Metastore, PutKey
from stelae.ports.rng import Rng
from stelae.registry.decoding import json_of

STORE_KEY = "store"
STORE_FORMAT = 1


class StoreMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """`token` tells this store from every other. `fragments`: the URL that they lie under, if that is not the
    directory."""

    format: int
    token: str
    fragments: str = ""


async def mark_store(store: Metastore, rng: Rng, fragments: str = "") -> StoreMark:
    """Mark a new store; return the mark that the store has, which an older one got long ago."""
    mark = StoreMark(STORE_FORMAT, rng.token(16).hex(), fragments)
    await store.txn([IsAbsent(STORE_KEY)], [PutKey(STORE_KEY, msgspec.json.encode(mark))])
    return await read_mark(store)


async def read_mark(store: Metastore) -> StoreMark:
    """Without a token, if the store is still to be made. UnsupportedFormat if it was made by a release that this one
    cannot follow."""
    entry = await store.get(STORE_KEY)
    if entry is None:
        return StoreMark(STORE_FORMAT, "")
    fields = json_of(entry, dict[str, object], "the store's mark")
    if fields.get("format") != STORE_FORMAT:
        raise UnsupportedFormat(
            f"the store is of format {fields.get('format')}; this release reads and writes format {STORE_FORMAT}. "
            "Open it with the release that wrote it, or a newer one"
        )
    return json_of(entry, StoreMark, "the store's mark")
