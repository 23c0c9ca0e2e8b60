"""Which tickets of a store are out: jobs must let go of all of them, however they end."""

from __future__ import annotations

from typing import Any

import stelae


class Tickets:
    """Stands between a database and its store from when it is made on."""

    def __init__(self, db: stelae.Database) -> None:
        self.backend: Any = db._session.backend
        self.out: set[str] = set()
        self.given = 0
        session: Any = db._session
        session.backend = self

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.backend, name)
        if name not in ("hold", "begin_load", "begin_compaction", "release"):
            return found

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = found(*args, **kwargs)
            if name == "release":
                self.out.discard(args[0])
            else:
                self.out.add(result.ticket)
                self.given += 1
            return result

        return noted


def interrupting(after: int) -> Any:
    """A progress callback that is Ctrl-C at the call with that number."""
    calls = 0

    def progress(_done: int, _total: int) -> None:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt

    return progress
