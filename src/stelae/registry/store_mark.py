"""What a store is: its format and its token, written to the metastore once, when the store is made."""

from __future__ import annotations

import msgspec

from stelae.model.errors import InvalidArgument, UnsupportedFormat
from stelae.ports.metastore import IsAbsent, Metastore, PutKey
from stelae.ports.rng import Rng
from stelae.registry.decoding import json_of

STORE_KEY = "store"
STORE_FORMAT = 1


class StoreMark(msgspec.Struct, frozen=True, omit_defaults=True):
    """`token` tells this store from every other. `fragments`: the URL that they lie under, if that is not the
    directory. `is_cluster`: several processes serve it, and none opens it alone."""

    format: int
    token: str
    fragments: str = ""
    is_cluster: bool = False


async def mark_store(store: Metastore, rng: Rng, fragments: str = "", *, is_cluster: bool = False) -> StoreMark:
    """Mark a new store; return the mark that the store has, which an older one got long ago. InvalidArgument if that is
    a store of the other kind."""
    mark = StoreMark(STORE_FORMAT, rng.token(16).hex(), fragments, is_cluster)
    await store.txn([IsAbsent(STORE_KEY)], [PutKey(STORE_KEY, msgspec.json.encode(mark))])
    found = await read_mark(store)
    check_kind(found, is_cluster)
    return found


def check_kind(mark: StoreMark, is_cluster: bool) -> None:
    if mark.is_cluster and not is_cluster:
        raise InvalidArgument(
            "the metastore is a cluster's, which its master and its nodes serve: connect to it with stelae.connect, or "
            "--cluster HOST:PORT"
        )
    if is_cluster and not mark.is_cluster:
        raise InvalidArgument("the metastore is of a store in a directory, which no cluster can serve: use another")


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
