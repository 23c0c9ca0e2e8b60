"""Errors say what the caller does next, and survive the way from a worker process."""

from __future__ import annotations

import inspect
import pickle

import pytest

import stelae
from stelae.model import errors
from stelae.model.errors import Corruption, InvalidPredicate, PartialWrite, Retryable, StelaeError, nearest

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, StelaeError)]


PUBLIC = (
    "AlreadyExists",
    "Closed",
    "Conflict",
    "Corruption",
    "InvalidArgument",
    "InvalidSchema",
    "NotFound",
    "Overloaded",
    "PartialWrite",
    "PermissionDenied",
    "Retryable",
    "SnapshotTooOld",
    "Unavailable",
)


def test_the_public_errors_are_there_and_of_one_family() -> None:
    for name in PUBLIC:
        assert issubclass(getattr(stelae, name), stelae.StelaeError)
    assert issubclass(stelae.Overloaded, Retryable)
    assert issubclass(stelae.Unavailable, Retryable)
    assert not issubclass(stelae.Conflict, Retryable)


SAMPLES = [
    *(kind("what was wrong") for kind in KINDS if kind not in (Corruption, InvalidPredicate, PartialWrite)),
    Corruption("bad", "file.parquet", 7),
    InvalidPredicate("bad", "a = ", 4),
    PartialWrite("half", 3),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_errors_pickle_whole(error: StelaeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


def test_corruption_says_where() -> None:
    assert str(Corruption("bad", "x.log", 7)) == "x.log at byte 7: bad"
    assert str(Corruption("bad", "x.log")) == "x.log: bad"


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("usres", ["users", "orders"]) == "; did you mean 'users'?"
    assert nearest("xyz", ["users"]) == ""
