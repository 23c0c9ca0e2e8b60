"""Whether a master's records of tablets leave nothing out."""

from __future__ import annotations

from stelae.master.master import Master
from stelae.model.errors import StelaeError
from stelae.model.ranges import check_cover
from stelae.registry.catalog.service import CatalogService


def gaps(master: Master, catalog: CatalogService) -> list[str]:
    """Tables whose recorded tablets do not cover all rows once, and how, in words."""
    wrong = []
    for id_, table in catalog.latest.tables.items():
        try:
            check_cover([record.rows for record in master.maps.of_table(id_)])
        except StelaeError as error:
            wrong.append(f"table {catalog.latest.qualified_name(table)!r}: {error}")
    return wrong
