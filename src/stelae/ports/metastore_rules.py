"""What every metastore refuses before anything is sent, in the same words, and how its keys are bytes.

Keys are text; ordered by code point they are ordered by their UTF-8 bytes too, so both orders are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from stelae.model.errors import InvalidArgument
from stelae.ports.metastore import (
    OPS_MAX,
    TTL_S_MAX,
    TXN_BYTES_MAX,
    Change,
    Compare,
    DeleteKey,
    DeletePrefix,
    IsAbsent,
    ModRevisionIs,
    PutKey,
    Revision,
    ValueIs,
)


def key_bytes(key: str) -> bytes:
    if not key:
        raise InvalidArgument("a metastore key is not empty")
    return prefix_bytes(key)


def prefix_bytes(prefix: str) -> bytes:
    try:
        return prefix.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"{prefix!r} is not text that UTF-8 can hold: {error.reason}") from error


def prefix_end(prefix: bytes) -> bytes | None:
    """The first key after all that start with the prefix; None if there is none. UTF-8 has no byte 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


def check_revision(revision: Revision) -> None:
    if revision < 1:
        raise InvalidArgument(f"revisions begin at 1: {revision}")


def check_read_request(limit: int | None, revision: Revision | None) -> None:
    if limit is not None and limit < 1:
        raise InvalidArgument(f"a limit of {limit} entries reads nothing")
    if revision is not None:
        check_revision(revision)


def check_not_ahead(asked: Revision, newest: Revision) -> None:
    if asked > newest:
        raise InvalidArgument(f"revision {asked} is in the future: the newest is {newest}")


def check_ttl(ttl_s: float) -> None:
    if not isfinite(ttl_s) or not 0 < ttl_s <= TTL_S_MAX:
        raise InvalidArgument(f"a lease lives more than 0 and at most {TTL_S_MAX} seconds: {ttl_s}")


def check_txn_request(compares: Sequence[Compare], changes: Sequence[Change]) -> None:
    """Few and small enough, every key a key, and no key changed twice, whatever keys there are."""
    if len(compares) + len(changes) > OPS_MAX:
        raise InvalidArgument(f"{len(compares)} compares, {len(changes)} changes: a transaction has at most {OPS_MAX}")
    size_bytes = sum(_compare_size(compare) for compare in compares) + sum(_change_size(change) for change in changes)
    if size_bytes > TXN_BYTES_MAX:
        raise InvalidArgument(f"{size_bytes} bytes of keys and values: a transaction has at most {TXN_BYTES_MAX}")
    _check_changed_once(changes)


def _compare_size(compare: Compare) -> int:
    match compare:
        case IsAbsent(key):
            return len(key_bytes(key))
        case ValueIs(key, value):
            return len(key_bytes(key)) + len(value)
        case ModRevisionIs(key, revision):
            check_revision(revision)
            return len(key_bytes(key))


def _change_size(change: Change) -> int:
    match change:
        case PutKey(key, value):
            return len(key_bytes(key)) + len(value)
        case DeleteKey(key):
            return len(key_bytes(key))
        case DeletePrefix(prefix):
            return len(prefix_bytes(prefix))


def _check_changed_once(changes: Sequence[Change]) -> None:
    keys: dict[str, None] = {}
    prefixes: list[str] = []
    for change in changes:
        match change:
            case PutKey(key) | DeleteKey(key):
                if key in keys:
                    raise InvalidArgument(f"key {key!r} is changed twice in one transaction")
                keys[key] = None
            case DeletePrefix(prefix):
                prefixes.append(prefix)
    for number, prefix in enumerate(prefixes):
        for name in [*keys, *prefixes[:number], *prefixes[number + 1 :]]:
            if name.startswith(prefix):
                raise InvalidArgument(f"{name!r} is changed and prefix {prefix!r} deleted in one transaction")
