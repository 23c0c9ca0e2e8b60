"""Replicas beside each other: what differs is found, and what only came later or went earlier is no difference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stelae.format.log.records import LogRecord, checksum_of
from stelae.model.ids import Epoch, Index, Txn
from stelae.storage.replicas.comparing import find_differences, image_of
from stelae.storage.replicas.replica import Replica
from tests.storage.replicas.records import block, config, replica_of


def records(count: int) -> list[LogRecord]:
    return [block(1 + index // 4, index) for index in range(1, count + 1)]


def differences(right: Replica, other: Replica, upto: int) -> list[str]:
    return list(find_differences(image_of(right), image_of(other), upto))


def test_the_same_is_the_same() -> None:
    assert differences(replica_of(*records(6)), replica_of(*records(6)), 6) == []
    assert differences(replica_of(), replica_of(), 0) == []


def test_what_the_other_is_not_known_to_have_is_no_difference() -> None:
    assert differences(replica_of(*records(6)), replica_of(*records(4)), 4) == []
    assert differences(replica_of(*records(4)), replica_of(*records(6)), 4) == []
    longer = replica_of(*records(4), block(1, 5, b"of a leader before"))
    assert differences(replica_of(*records(6)), longer, 4) == []


def test_a_record_that_lacks_is_named() -> None:
    (words,) = differences(replica_of(*records(6)), replica_of(*records(5)), 6)
    assert words == "record 6 (epoch 2) is missing there"
    (words,) = differences(replica_of(*records(6)), replica_of(), 6)
    assert words == "records 1 (epoch 1), 2 (epoch 1), 3 (epoch 1) and 3 more are missing there"


@given(st.data())
def test_whatever_of_a_record_is_not_the_same_is_found(data: st.DataObject) -> None:
    given_ = records(data.draw(st.integers(1, 8)))
    at = data.draw(st.integers(0, len(given_) - 1))
    old = given_[at]
    payload = bytearray(old.payload)
    what = data.draw(st.sampled_from(["payload", "txn", "epoch"]))
    if what == "payload":
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        new = old._replace(payload=bytes(payload), checksum=checksum_of(payload))
    elif what == "txn":
        new = old._replace(txn=Txn(old.txn + 1))
    else:
        new = old._replace(epoch=Epoch(old.epoch + 1))
    other = replica_of(*given_[:at], new, *given_[at + 1 :])
    (words,) = differences(replica_of(*given_), other, len(given_))
    assert words == f"record {old.index} (epoch {old.epoch}) is not the same there"


def test_what_files_hold_for_one_of_them_is_not_compared() -> None:
    flushed = [*records(4), config(2, 5, stable=4)]
    ahead, behind = replica_of(*flushed), replica_of(*flushed)
    ahead.commit(Index(5))
    assert ahead.begin.index == 4
    assert differences(ahead, behind, 5) == []
    assert differences(behind, ahead, 5) == []


def test_configs_at_one_place_must_be_one() -> None:
    one, other = replica_of(config(1, 1, stable=0)), replica_of(config(1, 1, stable=0))
    for each in (one, other):
        each.commit(Index(1))
    assert differences(one, other, 1) == []
    other.encoded += b"\0"
    (words,) = differences(one, other, 1)
    assert words == "the config at index 1 is not the same there"
