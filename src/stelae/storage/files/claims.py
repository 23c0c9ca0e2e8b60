"""Whose fragments lie in a store of blobs: one object says so, by the token of the store that they are of.

Whoever collects garbage removes every fragment that its tablets do not need. Two stores in one place would take each
other's for garbage; so a store that keeps its fragments away from its directory claims the place first. The claim
stays for ever. It does not tell a store from a copy of its directory, which has the same token.
"""

from __future__ import annotations

import msgspec

from stelae.format.checksums import crc32c
from stelae.model.errors import AlreadyExists, Corruption, InvalidArgument
from stelae.ports.blobs import BlobStore

CLAIM = "stelae-store.json"


class _Claim(msgspec.Struct, frozen=True, omit_defaults=True):
    """`crc`: of the token, so that a damaged claim is not taken for another store's. The first claims had none."""

    token: str
    crc: int | None = None


def check_claim(blobs: BlobStore, token: str, place: str) -> None:
    """InvalidArgument if the fragments of another store lie there; `token` is empty if the store has none yet. What
    the place itself refuses (it is not there, or closed to us) is raised, too."""
    if all(info.name != CLAIM for info in blobs.list(CLAIM)):
        return
    if _read_claim(blobs, place).token != token:
        raise InvalidArgument(f"{place} holds the fragments of another store: choose another place for this one's")


def claim_blobs(blobs: BlobStore, token: str, place: str) -> None:
    """Claim the place for the store with that token, unless it has done so before; InvalidArgument as `check_claim`."""
    writer = blobs.create(CLAIM)
    try:
        writer.write(msgspec.json.encode(_Claim(token, crc32c(token.encode()))))
        writer.commit()
    except AlreadyExists:
        check_claim(blobs, token, place)
    finally:
        writer.abort()


def _read_claim(blobs: BlobStore, place: str) -> _Claim:
    blob = blobs.open(CLAIM)
    try:
        claim = msgspec.json.decode(bytes(blob.read(0, blob.size_bytes)), type=_Claim)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corruption(f"it does not say whose fragments lie in {place}: {error}", CLAIM) from None
    finally:
        blob.close()
    if claim.crc not in (None, crc32c(claim.token.encode())):
        raise Corruption(f"it does not say whose fragments lie in {place}: it does not have its checksum", CLAIM)
    return claim
