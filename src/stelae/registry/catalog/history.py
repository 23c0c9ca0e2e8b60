"""The versions of the catalog that a process can name."""

from __future__ import annotations

from bisect import bisect_right

from stelae.catalog.entries import Update
from stelae.catalog.value import Catalog, CatalogVersion
from stelae.model import hybrid
from stelae.model.errors import NotFound, SnapshotTooOld
from stelae.model.ids import Txn
from stelae.ports.metastore import Metastore
from stelae.registry.catalog import update_log as log
from stelae.registry.schema_versions import SchemaVersions


class CatalogHistory:
    """Versions without gaps, from the oldest that can be had to the newest read."""

    def __init__(self, base: Catalog) -> None:
        self._catalogs = [base]
        self._activations = [base.activation]
        self._tokens: dict[bytes, CatalogVersion] = {}

    def add(self, catalog: Catalog, update: Update) -> None:
        self._catalogs.append(catalog)
        self._activations.append(catalog.activation)
        self._tokens[update.token] = update.version

    @property
    def latest(self) -> Catalog:
        return self._catalogs[-1]

    @property
    def earliest(self) -> Catalog:
        return self._catalogs[0]

    def made_by(self, token: bytes) -> CatalogVersion | None:
        """The version that an update with this token made."""
        return self._tokens.get(token)

    def version(self, version: CatalogVersion) -> Catalog:
        first, newest = self.earliest.version, self.latest.version
        if version < first:
            raise SnapshotTooOld(f"catalog version {version} was compacted away; the oldest kept is {first}")
        if version > newest:
            raise NotFound(f"catalog version {version} is not known yet; the newest is {newest}")
        return self._catalogs[version - first]

    def at(self, ts: Txn) -> Catalog:
        place = bisect_right(self._activations, ts) - 1
        if place < 0:
            raise SnapshotTooOld(
                f"the catalog of {hybrid.to_datetime(ts)} was compacted away; "
                f"the oldest kept begins at {hybrid.to_datetime(self._activations[0])}"
            )
        return self._catalogs[place]

    def forget_before(self, version: CatalogVersion) -> None:
        count = max(0, min(version - self._catalogs[0].version, len(self._catalogs) - 1))
        del self._catalogs[:count]
        del self._activations[:count]
        oldest = self._catalogs[0].version
        self._tokens = {token: at for token, at in self._tokens.items() if at >= oldest}


async def read_history(store: Metastore, head: log.LogHead) -> tuple[CatalogHistory, SchemaVersions]:
    """All there is, and the schemas that tables have had in it."""
    base = await log.read_base(store, head)
    history, schemas = CatalogHistory(base), SchemaVersions()
    schemas.begin(base)
    async for update in log.read_updates(store, base.version, head):
        catalog = log.apply_checked(history.latest, update)
        history.add(catalog, update)
        schemas.follow(catalog, update)
    return history, schemas
