"""What followers of the catalog hear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from stelae.catalog.entries import Entry
from stelae.catalog.value import Catalog


@dataclass(frozen=True, slots=True)
class CatalogEvent:
    """Something that happened in a version. The catalog of that version can be read by whoever hears of it."""

    catalog: Catalog
    entry: Entry


Subscriber = Callable[[CatalogEvent], Awaitable[None]]
