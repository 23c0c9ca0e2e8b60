"""What can happen to secondary indexes. No command makes one yet; catalogs that have them are read."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from stelae.catalog.objects import Index, IndexId, IndexStatus
from stelae.catalog.value import Catalog


class IndexCreated(msgspec.Struct, frozen=True):
    index: Index

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_index(self.index)


class IndexStatusSet(msgspec.Struct, frozen=True):
    index: IndexId
    status: IndexStatus

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_index(replace(catalog.indexes[self.index], status=self.status))


class IndexRemoved(msgspec.Struct, frozen=True):
    index: IndexId

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.without_index(self.index)
