"""Files that others wrote to the store, before they are believed."""

from __future__ import annotations

from stelae.format.fragment.footer import FragmentFile
from stelae.model.errors import InvalidArgument, NotFound
from stelae.ports.blobs import BlobStore
from stelae.storage.files.names import is_fragment_name


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
