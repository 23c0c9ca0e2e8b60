"""Files that others wrote to the store: before they are believed, and when nobody asks for them any more."""

from __future__ import annotations

from collections.abc import Callable

from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument, NotFound
from stelae.ports.blobs import BlobStore
from stelae.service.tickets import OVERLAYS, STAGED_MS_MAX, STAGING, overlay_directory, overlay_ticket, staged_at_ms
from stelae.storage.files.writing import is_fragment_name


def check_written(blobs: BlobStore, prefix: str, file: FragmentFile) -> None:
    """It is there, whole, and called as it should be."""
    if not file.name.startswith(prefix) or not is_fragment_name(file.name):
        raise InvalidArgument(f"file {file.name!r} is not of this job, whose files' names begin {prefix!r}")
    try:
        blob = blobs.open(file.name)
    except NotFound:
        raise InvalidArgument(f"file {file.name!r} is not on the store") from None
    try:
        if blob.size_bytes != file.seal.size_bytes:
            raise InvalidArgument(f"file {file.name!r} has {blob.size_bytes} bytes, not {file.seal.size_bytes}")
    finally:
        blob.close()


def drop_overlays(blobs: BlobStore, is_held: Callable[[str], bool]) -> None:
    """Delete the overlays of holds that have ended."""
    tickets = {ticket for info in blobs.list(OVERLAYS) if (ticket := overlay_ticket(info.name)) is not None}
    for ticket in sorted(tickets):
        if not is_held(ticket):
            blobs.delete_below(overlay_directory(ticket))


def drop_staged(blobs: BlobStore, now_ms: int) -> None:
    """What batches that never ended have left."""
    for info in list(blobs.list(STAGING)):
        staged_ms = staged_at_ms(info.name)
        if staged_ms is not None and now_ms - staged_ms > STAGED_MS_MAX:
            blobs.delete(info.name)
