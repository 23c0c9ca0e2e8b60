"""A batch of commands makes one version: each command sees what those before it have made, and all or none count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from stelae.catalog.check import check_touched
from stelae.catalog.entries import Entry
from stelae.catalog.value import Catalog, CatalogVersion

COMMANDS_MAX = 10_000


class Command(Protocol):
    def decide(self, catalog: Catalog) -> tuple[Entry, ...]:
        """The entries that carry the command out; none if there is nothing to do. Raises what stands against it."""
        ...


def decide_batch(catalog: Catalog, commands: Sequence[Command]) -> tuple[Entry, ...]:
    working = replace(catalog, version=CatalogVersion(catalog.version + 1))
    entries: list[Entry] = []
    for command in commands:
        for entry in command.decide(working):
            working = entry.apply(working)
            entries.append(entry)
    check_touched(working, entries)
    return tuple(entries)
