"""One place for blobs, one store: the first to claim it has it."""

from __future__ import annotations

import pytest

from stelae.model.errors import Corruption, InvalidArgument
from stelae.sim.blobs import SimBlobStore
from stelae.sim.rng import SimRng
from stelae.storage.files.claims import CLAIM, check_claim, claim_blobs


@pytest.fixture
def blobs() -> SimBlobStore:
    return SimBlobStore(SimRng(1))


def test_a_place_that_nobody_claims_is_free(blobs: SimBlobStore) -> None:
    check_claim(blobs, "", "here")
    check_claim(blobs, "one", "here")


def test_a_claim_holds_against_others_and_not_against_its_owner(blobs: SimBlobStore) -> None:
    for _ in range(2):
        claim_blobs(blobs, "one", "here")
        check_claim(blobs, "one", "here")
    for token in ("two", ""):
        with pytest.raises(InvalidArgument, match="here holds the fragments of another store"):
            check_claim(blobs, token, "here")
    with pytest.raises(InvalidArgument, match="another store"):
        claim_blobs(blobs, "two", "here")
    check_claim(blobs, "one", "here")


def test_a_claim_that_cannot_be_read_is_corruption(blobs: SimBlobStore) -> None:
    writer = blobs.create(CLAIM)
    writer.write(b"something")
    writer.commit()
    with pytest.raises(Corruption, match=f"{CLAIM}.*whose fragments lie in here"):
        check_claim(blobs, "one", "here")


def test_a_flipped_byte_of_a_claim_is_not_another_store(blobs: SimBlobStore) -> None:
    claim_blobs(blobs, "a1b2c3", "here")
    data = bytes(blobs.open(CLAIM).read(0, blobs.open(CLAIM).size_bytes))
    found = 0
    for at in range(len(data)):
        for mask in (1, 4, 128):
            blobs.delete(CLAIM)
            writer = blobs.create(CLAIM)
            writer.write(data[:at] + bytes([data[at] ^ mask]) + data[at + 1 :])
            writer.commit()
            try:
                check_claim(blobs, "a1b2c3", "here")
            except Corruption:
                found += 1
    assert found > len(data)


def test_a_claim_of_before_there_were_checksums(blobs: SimBlobStore) -> None:
    writer = blobs.create(CLAIM)
    writer.write(b'{"token":"one"}')
    writer.commit()
    check_claim(blobs, "one", "here")
