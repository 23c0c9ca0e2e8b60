"""A driver with a Spark of its own, that reads a table of which rows are merged: `python -m tests.spark.overlay_driver
DIR POINT`.

With `killed` it ends with -9 when it has a frame. With `stopped` it ends its session, begins another and reads the same
snapshot again, before it is known that the first is over.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import stelae
import stelae.spark
from stelae.spark.reading import holding


def begin() -> Any:
    return stelae.spark.session("stelae-overlays", "local[2]", **{"spark.driver.memory": "512m"})


def main(directory: str, point: str) -> None:
    with stelae.open(directory) as db:
        spark = begin()
        frame = stelae.spark.read(spark, db, "t")
        if point == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"{frame.count()} rows", flush=True)
        spark.stop()
        spark = begin()
        again = stelae.spark.read(spark, db, "t")
        holding._holder.look()
        print(f"{len(list(Path(directory).glob('overlays/*')))} overlays", flush=True)
        print(f"{again.count()} rows", flush=True)
        spark.stop()
    print(f"{len(list(Path(directory).glob('overlays/*')))} overlays", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
