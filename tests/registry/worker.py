"""A process that changes a catalog at random and says on standard output what it was told: run by test_processes.

    python -m tests.registry.worker '{"path": DIR}' | '{"etcd": HOST:PORT}'  NAME SEED COUNT SNAPSHOT_EVERY

One JSON object a line: {"ack": version, "made": table} and so on. After COUNT commands it waits for a line on standard
input, then says the newest catalog it sees and ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
from pathlib import Path

from stelae.catalog.commands.columns import AddColumns, DropColumns
from stelae.catalog.commands.tables import DropTable, SetProperty, TableName
from stelae.catalog.decide import Command
from stelae.catalog.describe import describe_catalog
from stelae.catalog.value import Catalog
from stelae.launch.metastores import InDirectory, MetastorePlace, OnEtcd, open_metastore
from stelae.model.declare import parse_column
from stelae.model.errors import StelaeError, Unavailable, UnknownOutcome
from stelae.registry.catalog.service import CatalogService
from stelae.registry.catalog.settings import CatalogSettings
from tests.catalog.samples import create
from tests.registry.catalogs import opened_catalog


def place_of(words: str) -> MetastorePlace:
    place = json.loads(words)
    return InDirectory(Path(place["path"])) if "path" in place else OnEtcd((place["etcd"],))


def fingerprint(catalog: Catalog) -> str:
    return hashlib.sha256(json.dumps(describe_catalog(catalog)).encode()).hexdigest()


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class Worker:
    def __init__(self, service: CatalogService, name: str, seed: int) -> None:
        self.service = service
        self.name = name
        self.random = random.Random(seed)

    async def one(self, number: int) -> None:
        name = f"{self.name}-{number}"
        tables = sorted(table.name for table in self.service.latest.tables.values())
        some = TableName.parse(self.random.choice(tables)) if tables else None
        choice = self.random.randrange(6) if some else 0
        command: Command
        if some is None or choice <= 2:
            command = create(name)
        elif choice == 3:
            command = DropTable(some)
        elif choice == 4:
            command = AddColumns(some, "profile", (parse_column(f"c{number}", "int32"),))
        else:
            comment, drop = SetProperty(some, "comment", name), DropColumns(some, ("name",))
            command = comment if self.random.randrange(2) else drop
        try:
            made = await self.service.execute(command)
        except (Unavailable, UnknownOutcome) as error:
            say(unsure=name, kind=type(command).__name__, why=str(error))
        except StelaeError as error:
            say(refused=str(error))
        else:
            say(
                ack=made.version,
                kind=type(command).__name__,
                made=name if isinstance(command, type(create())) else None,
            )


async def main(place: MetastorePlace, name: str, seed: int, count: int, snapshot_every: int) -> None:
    settings = CatalogSettings(author=name, attempts_max=200, snapshot_every=snapshot_every)
    async with open_metastore(place) as store, opened_catalog(store, settings) as service:
        worker = Worker(service, name, seed)
        say(started=service.latest.version)
        for number in range(count):
            await worker.one(number)
        say(done=service.latest.version, fingerprint=fingerprint(service.latest))
        await asyncio.to_thread(sys.stdin.readline)
        now = await service.catalog_at(service.time.tick())
        say(final=now.version, fingerprint=fingerprint(now))


if __name__ == "__main__":
    asyncio.run(main(place_of(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:6])))
