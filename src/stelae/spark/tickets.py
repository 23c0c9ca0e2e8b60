"""Tickets opened: the tablets that a ticket of the store carries as bytes."""

from __future__ import annotations

from stelae.service.tickets import CompactionTicket, CompactionWork, HeldTable
from stelae.storage.offline.tablets import HeldTablet


def held_tablets(held: HeldTable) -> tuple[HeldTablet, ...]:
    """The tablets of a held table, in the order of their rows."""
    schema = held.schema()
    return tuple(HeldTablet.decode(each, schema, f"table {held.name!r}") for each in held.configs)


def tablet_to_merge(ticket: CompactionTicket, work: CompactionWork) -> HeldTablet:
    """The tablet whose files a compaction's work is about."""
    return HeldTablet.decode(work.config, ticket.schema(), "a compaction")
