"""How the stores here were made, by the release before log format 2: `python made_by.py DIRECTORY closed|killed`.

The zeros behind the log of the one that was killed are cut to 2 KiB, and its metastore's own log is checkpointed.
"""

import os
import signal
import sys

import stelae

place, how = sys.argv[1:]
db = stelae.open(place)
users = db.create_table(
    "users",
    key={"id": "int64"},
    groups=[stelae.columns("a", {"name": "string", "age": "int64"}), stelae.cells("c", families=["seen"])],
    splits=[100, 200],
)
users.put_many([{"id": n, "name": f"flushed {n}", "age": n, "seen:first": b"%d" % n} for n in range(0, 300, 10)])
users.flush()
users.put({"id": 10, "name": "changed"})
users.put_many([{"id": n, "name": f"logged {n}", "age": n} for n in range(5, 300, 50)])
users.erase({"id": 20})
db.create_table("old", key={"id": "int64"}, groups=[stelae.columns("a", {"v": "int64"})])
old = db.table("old")
old.put_many([{"id": n, "v": n} for n in range(20)])
db.truncate_table("old")
old.put({"id": 7, "v": 70})
users.put({"id": 299, "name": "the last", "age": 1})
if how == "closed":
    db.close()
else:
    os.kill(os.getpid(), signal.SIGKILL)
