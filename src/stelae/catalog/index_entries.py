"""What can happen to secondary indexes. No command makes one yet; catalogs that have them are read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stelae.catalog.objects import Index, IndexId, IndexStatus
from stelae.catalog.value import Catalog


@dataclass(frozen=True, slots=True)
class IndexCreated:
    index: Index

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_index(self.index)


@dataclass(frozen=True, slots=True)
class IndexStatusSet:
    index: IndexId
    status: IndexStatus

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.with_index(replace(catalog.indexes[self.index], status=self.status))


@dataclass(frozen=True, slots=True)
class IndexRemoved:
    index: IndexId

    def apply(self, catalog: Catalog) -> Catalog:
        return catalog.without_index(self.index)
