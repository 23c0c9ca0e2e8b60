"""How many files a process may have open, and how many of them a store takes.

The system's limit is for the whole process: the caller's own files and connections, the store's log, metastore and
sockets, and the fragments that it reads. So fragments get a quarter of it; where connections are all that a process is
for, they get half. A soft limit that is low is raised first, as
far as the hard one allows, but not beyond what old programs can bear that count on small numbers.
"""

from __future__ import annotations

import resource
from contextlib import suppress

SOFT_LIMIT = 4096
"""The soft limit is raised to this, if it is lower."""

_SHARE = 4
_FRAGMENTS_MIN = 8
_FRAGMENTS_MAX = 512
_CONNECTIONS_MIN = 16
_CONNECTIONS_MAX = 2_000


def take_descriptors() -> int:
    """Raise this process's soft limit where that is allowed; return how many fragments its stores may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = SOFT_LIMIT if hard == resource.RLIM_INFINITY else min(SOFT_LIMIT, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a sandbox refuses it: then the limit is what it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return fragments_of(soft)


def fragments_of(soft: int) -> int:
    """How many fragments may be open under a soft limit."""
    if soft == resource.RLIM_INFINITY:
        return _FRAGMENTS_MAX
    return max(_FRAGMENTS_MIN, min(_FRAGMENTS_MAX, soft // _SHARE))


def connections_allowed() -> int:
    """How many connections a process may serve that is there for that."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return connections_of(soft)


def connections_of(soft: int) -> int:
    """How many connections a server may have under a soft limit."""
    if soft == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    return max(_CONNECTIONS_MIN, min(_CONNECTIONS_MAX, soft // 2))
