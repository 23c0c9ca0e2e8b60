"""Tables as commands show them: of a cluster also while some of its shards are away, as far as they can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import stelae
from stelae.cli.screens import note
from stelae.client.api.display import described
from stelae.model.errors import Closed, Unavailable

if TYPE_CHECKING:
    from stelae.client.remote.cluster.looks import TableLook, UnseenTablet
    from stelae.model.errors import StelaeError
    from stelae.service.backend import Backend
    from stelae.service.deadlines import Deadline
    from stelae.service.tables import TableInfo, TableStats, TabletInfo

UNKNOWN = "?"


class Looks:
    """At the tables of a database, one after another. A shard that does not answer is waited for once."""

    def __init__(self, database: stelae.Database) -> None:
        from stelae.client.api.database import session_of  # not by those who want help

        self._database = database
        self._session = session_of(database)
        self._away: dict[str, StelaeError] = {}

    def describe(self, name: str) -> dict[str, Any]:
        """As `Database.describe`; `size_bytes` and `files` are None if they are not known of all its tablets."""
        if self._session.cluster is None:
            return self._database.describe(name)
        info, look = self._look_at(name)
        found = described(info, look.stats if look.is_whole else None)
        if not look.is_whole:
            found |= {"tablets": len(look.tablets), "files": None, "size_bytes": None}
        return found

    def tablets(self, name: str) -> Sequence[TabletInfo | UnseenTablet]:
        if self._session.cluster is None:
            return self._database.table(name).tablets()
        return self._look_at(name)[1].tablets

    def stats(self, name: str) -> TableStats | None:
        """None if they are not known of all its tablets."""
        if self._session.cluster is None:
            return self._database.table(name).stats()
        look = self._look_at(name)[1]
        return look.stats if look.is_whole else None

    def check_whole(self, name: str) -> None:
        """Unavailable if not all of a table can be seen: for what makes no sense of a part of it."""
        if self._session.cluster is None:
            return
        look = self._look_at(name)[1]
        if not look.is_whole:
            who = (
                f"shard {', '.join(look.away)} does not answer" if look.away else "some of its tablets nobody leads now"
            )
            raise Unavailable(f"table {name}: {who}, and all of it is needed; see stelae cluster show")

    def explain(self) -> None:
        """Say who is away, if somebody is: on standard error."""
        for shard in self._away:
            note(f"shard {shard} does not answer: what it has is not known now; see stelae cluster show")

    def _look_at(self, name: str) -> tuple[TableInfo, TableLook]:
        def look(backend: Backend, until: Deadline) -> tuple[TableInfo, TableLook]:
            from stelae.client.remote.cluster.store import ClusterStore

            if not isinstance(backend, ClusterStore):
                raise Closed(f"{backend.place}: the database is closed")
            info = backend.find(name, deadline=until)
            return info, backend.look_at(info.id, self._away, deadline=until)

        return self._session.ask(look)
