"""A process of its own that uses an SQLite metastore: what the tests start, and kill.

python -m tests.contract.metastore_process <path> count <name> <times>    increment a counter, exactly so often
python -m tests.contract.metastore_process <path> write <from>            put numbers for ever, telling each when acked
python -m tests.contract.metastore_process <path> fork                    what a forked child may do with it
"""

from __future__ import annotations

import asyncio
import os
import sys

from stelae.adapters.clock import SystemClock
from stelae.adapters.sqlite.metastore import SqliteMetastore
from stelae.model.errors import Closed
from stelae.ports.metastore import IsAbsent, ModRevisionIs, PutKey


async def count(store: SqliteMetastore, name: str, times: int) -> None:
    for number in range(times):
        while True:
            entry = await store.get("counter")
            guard = IsAbsent("counter") if entry is None else ModRevisionIs("counter", entry.mod_revision)
            value = b"%d" % (1 if entry is None else int(entry.value) + 1)
            if (await store.txn([guard], [PutKey("counter", value), PutKey(f"{name}/{number}", value)])).succeeded:
                break


async def write(store: SqliteMetastore, start: int) -> None:
    number = start
    while True:
        await store.txn([], [PutKey(f"key/{number:06}", b"%d" % number), PutKey("last", b"%d" % number)])
        print(number, flush=True)
        number += 1


async def fork(store: SqliteMetastore) -> None:
    await store.txn([], [PutKey("key", b"")])
    child = os.fork()
    if child == 0:
        try:
            await store.get("key")
        except Closed as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), await store.get("key") is not None)


async def main(path: str, what: str, *arguments: str) -> None:
    store = await SqliteMetastore.open(path, SystemClock())
    match what:
        case "count":
            await count(store, arguments[0], int(arguments[1]))
        case "write":
            await write(store, int(arguments[0]))
        case "fork":
            await fork(store)
        case _:
            raise SystemExit(f"{what}?")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
