"""What followers of the catalog hear."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from stelae.catalog.entries import Entry
from stelae.catalog.value import Catalog


class CatalogEvent(msgspec.Struct, frozen=True):
    """Something that happened in a version. The catalog of that version can be read by whoever hears of it."""

    catalog: Catalog
    entry: Entry


Subscriber = Callable[[CatalogEvent], Awaitable[None]]
