"""What a failed call to etcd means: whether it has happened, and what to tell the caller.

gRPC's status codes alone do not say; etcd's own texts do. Only a failure that is known to come before the request could
take effect counts as not done: whatever else is unclear counts as perhaps done.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from stelae.model.errors import (
    AlreadyExists,
    Corruption,
    DiskFull,
    InvalidArgument,
    NotFound,
    Overloaded,
    PermissionDenied,
    StelaeError,
    Unavailable,
)
from stelae.ports.metastore import LeaseExpired


class Fate(Enum):
    """ANSWERED: etcd refused it, for good. NOT_DONE: it never got there, another member may take it. PERHAPS_DONE: the
    answer was lost. STALE_TOKEN: not done, authenticate again. COMPACTED, AHEAD: about the revision asked for.
    TOO_LARGE: the answer did not fit, so ask for less."""

    ANSWERED = "answered"
    NOT_DONE = "not done"
    PERHAPS_DONE = "perhaps done"
    STALE_TOKEN = "stale token"  # noqa: S105
    COMPACTED = "compacted"
    AHEAD = "ahead"
    TOO_LARGE = "too large"


class Failure(msgspec.Struct, frozen=True):
    fate: Fate
    error: StelaeError


_FATES = {
    "etcdserver: mvcc: required revision has been compacted": Fate.COMPACTED,
    "etcdserver: mvcc: required revision is a future revision": Fate.AHEAD,
    "etcdserver: invalid auth token": Fate.STALE_TOKEN,
    "etcdserver: revision of auth store is old": Fate.STALE_TOKEN,
    "etcdserver: user name is empty": Fate.STALE_TOKEN,  # no token was sent: authentication was switched on since
    "etcdserver: no leader": Fate.NOT_DONE,
    "etcdserver: not capable": Fate.NOT_DONE,
    "etcdserver: rpc not supported for learner": Fate.NOT_DONE,
}
_NEVER_SENT = ("failed to connect to all addresses", "Name resolution failure", "DNS resolution failed")
_RECEIVED_TOO_LARGE = "Received message larger than max"

_ANSWERS: dict[str, type[StelaeError]] = {
    "etcdserver: requested lease not found": LeaseExpired,
    "etcdserver: lease already exists": AlreadyExists,
    "etcdserver: mvcc: database space exceeded": DiskFull,
    "etcdserver: too many requests": Overloaded,
    "etcdserver: permission denied": PermissionDenied,
    "etcdserver: authentication failed, invalid user ID or password": PermissionDenied,
    "etcdserver: user name is empty": PermissionDenied,
    "etcdserver: invalid auth token": PermissionDenied,
}
_ANSWER_CODES: dict[str, type[StelaeError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "FAILED_PRECONDITION": InvalidArgument,
    "UNIMPLEMENTED": InvalidArgument,
    "NOT_FOUND": NotFound,
    "PERMISSION_DENIED": PermissionDenied,
    "UNAUTHENTICATED": PermissionDenied,
    "RESOURCE_EXHAUSTED": Overloaded,
}


def failure_of(code: str, details: str, endpoint: str) -> Failure:
    """What a gRPC status means, given the name of its code and its text."""
    text = f"etcd at {endpoint}: {details or code}"
    if code == "DATA_LOSS":
        return Failure(Fate.ANSWERED, Corruption(details, f"etcd at {endpoint}"))
    if _RECEIVED_TOO_LARGE in details:
        return Failure(Fate.TOO_LARGE, Overloaded(text))
    answer = _ANSWERS.get(details) or _ANSWER_CODES.get(code)
    if details in _FATES:
        return Failure(_FATES[details], (answer or Unavailable)(text))
    if details.startswith(_NEVER_SENT):
        return Failure(Fate.NOT_DONE, Unavailable(text))
    if answer is not None:
        return Failure(Fate.ANSWERED, answer(text))
    return Failure(Fate.PERHAPS_DONE, Unavailable(text))
