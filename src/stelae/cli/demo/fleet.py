"""The rows of the demo: a fleet of devices, the same in every run, without a visible pattern.

Spark makes them by an expression; without Spark numpy makes others of the same kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

import stelae
from stelae.client.api.database import Database
from stelae.client.api.table import Table

FLEET = "fleet"
NEW_FIRMWARE = "5.0.0"
ROLLED_OUT = 20
"""One device in so many gets the new firmware."""

TABLETS = 8
_KEY_FORM = "dev-%08d"
_CITIES = ("Lagos",) * 9 + ("Tokyo",) * 8 + ("Lima",) * 5 + ("Rome",) * 4 + ("Kyiv",) * 3 + ("Oslo", "Oslo", "Cork")
_MODELS = ("S1", "S1", "S2", "S2", "S2", "X9")
_FIRMWARES = ("4.0.7", "4.1.2", "4.1.2", "4.1.2", "4.1.3", "4.1.3", "4.2.0")
_FIRST_SEEN_US = 1_790_000_000_000_000
_DAY_US = 86_400_000_000


def device(number: int) -> str:
    return _KEY_FORM % number


def make_fleet(db: Database, rows: int, tablets: int) -> Table:
    return db.create_table(
        FLEET,
        key={"device": "string"},
        groups=[
            stelae.columns(
                "state",
                {
                    "city": "string",
                    "model": "string",
                    "firmware": "string",
                    "status": "string",
                    "battery": "float64",
                    "temperature": "float64",
                    "seen": "timestamp",
                },
            )
        ],
        splits=[device(rows * tablet // tablets) for tablet in range(1, tablets)],
    )


def fleet_frame(spark: Any, rows: int) -> Any:
    """The devices as a frame of Spark's."""

    def part(seed: int) -> str:
        """SQL for a number from 0 to 1, drawn evenly by a device's name."""
        return f"(pmod(xxhash64(id, {seed}), 1000000) / 1e6)"

    def one_of(values: tuple[str, ...], seed: int) -> str:
        listed = ", ".join(f"'{value}'" for value in values)
        return f"element_at(array({listed}), 1 + CAST({part(seed)} * {len(values)} AS INT))"

    return spark.range(rows).selectExpr(
        f"format_string('{_KEY_FORM}', id) AS device",
        f"{one_of(_CITIES, 1)} AS city",
        f"{one_of(_MODELS, 2)} AS model",
        f"{one_of(_FIRMWARES, 3)} AS firmware",
        f"CASE WHEN {part(4)} < 0.02 THEN 'offline' WHEN {part(4)} < 0.1 THEN 'charging' ELSE 'ok' END AS status",
        f"round(100 * sqrt({part(5)}), 1) AS battery",
        f"round(14 + 16 * {part(6)} + 4 * {part(7)}, 1) AS temperature",
        f"timestamp_micros({_FIRST_SEEN_US} + CAST({part(8)} * {_DAY_US} AS BIGINT)) AS seen",
    )


def fleet_batch(first: int, count: int) -> pa.Table:
    """The devices from one number on, as an Arrow table."""
    numbers = np.arange(first, first + count, dtype=np.int64)

    def mixed(step: int, below: int) -> Any:
        return (numbers * step >> 7) % below

    def one_of(values: tuple[str, ...], step: int) -> Any:
        return pa.array(values).take(pa.array(mixed(step, len(values))))

    return pa.table(
        {
            "device": pa.array([device(number) for number in range(first, first + count)]),
            "city": one_of(_CITIES, 40_503_551),
            "model": one_of(_MODELS, 7_919_777),
            "firmware": one_of(_FIRMWARES, 2_654_435),
            "status": one_of(("ok",) * 9 + ("charging",), 611_953),
            "battery": pa.array(mixed(104_729, 1_000) / 10),
            "temperature": pa.array(14 + mixed(1_299_709, 200) / 10),
            "seen": pa.array(_FIRST_SEEN_US + mixed(15_485_863, _DAY_US)).cast(pa.timestamp("us", "UTC")),
        }
    )
