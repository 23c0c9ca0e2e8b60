"""Files of jobs that have ended, or that nobody will ever finish."""

from __future__ import annotations

from collections.abc import Callable

from stelae.ports.blobs import BlobStore
from stelae.service.tickets import OVERLAYS, STAGED_MS_MAX, STAGING, overlay_directory, overlay_ticket, staged_at_ms


def overlay_tickets(blobs: BlobStore) -> list[str]:
    """The holds that there are overlays for."""
    return sorted({ticket for info in blobs.list(OVERLAYS) if (ticket := overlay_ticket(info.name)) is not None})


def drop_overlays(blobs: BlobStore, is_held: Callable[[str], bool]) -> None:
    """Delete the overlays of holds that have ended."""
    for ticket in overlay_tickets(blobs):
        if not is_held(ticket):
            blobs.delete_below(overlay_directory(ticket))


def drop_staged(blobs: BlobStore, now_ms: int) -> None:
    """Delete what batches that never ended have left."""
    for info in list(blobs.list(STAGING)):
        staged_ms = staged_at_ms(info.name)
        if staged_ms is not None and now_ms - staged_ms > STAGED_MS_MAX:
            blobs.delete(info.name)
