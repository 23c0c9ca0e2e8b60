"""A store's keys in etcd: the namespace, then the key."""

from __future__ import annotations

from typing import Any

from stelae.model.errors import Corruption
from stelae.ports.metastore import Entry, LeaseId, Revision
from stelae.ports.metastore_rules import key_bytes, prefix_bytes, prefix_end

_ALL = b"\0"  # as a key the first there can be, as the end of a range no end at all


class EtcdKeys:
    def __init__(self, namespace: bytes) -> None:
        self._namespace = namespace

    def key(self, key: str) -> bytes:
        return self._namespace + key_bytes(key)

    def bounds(self, prefix: str, start: str | None) -> tuple[bytes, bytes]:
        """The first key under the prefix from start on, and the end of those under the prefix, as etcd wants them."""
        within = self._namespace + prefix_bytes(prefix)
        begin = max(within, self._namespace + prefix_bytes(start or ""))
        return begin or _ALL, prefix_end(within) or _ALL

    def text(self, key: bytes) -> str:
        try:
            return key[len(self._namespace) :].decode()
        except UnicodeDecodeError as error:
            raise Corruption(f"key {key!r} is not UTF-8: another program wrote under our namespace", "etcd") from error

    def entry(self, found: Any) -> Entry:
        """An entry of etcd's KeyValue."""
        return Entry(
            self.text(found.key),
            found.value,
            Revision(found.create_revision),
            Revision(found.mod_revision),
            found.version,
            LeaseId(found.lease) if found.lease else None,
        )
