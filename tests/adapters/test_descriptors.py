"""How many files a store keeps open, under whatever limit its process has."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from stelae.adapters.descriptors import SOFT_LIMIT, fragments_of
from tests.effort import HANG_S

MANY = """
import os, resource, sys
soft, hard = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
import stelae
from stelae.storage.files.handles import OPEN_FILES

def descriptors():
    return len(os.listdir("/proc/self/fd"))

before = descriptors()
with stelae.open(sys.argv[1]) as db:
    groups = [stelae.columns(f"g{i}", {f"n{i}": "int64"}) for i in range(8)]
    t = db.create_table("t", key={"id": "int64"}, groups=groups, partition="hash", tablets=16)
    for key in range(2):
        t.put_many([{"id": k, **{f"n{i}": k for i in range(8)}} for k in range(key * 200, key * 200 + 200)])
        t.flush()
    assert t.count() == 400 and db.metrics()["fragments"] >= 100
    assert len(t.scan().to_arrow()) == 400
    assert t.get(7)["n3"] == 7
    assert not db.check().problems
    t.compact()
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], descriptors() - before, OPEN_FILES._files_max)
"""


@pytest.mark.parametrize(
    ("soft", "expected"),
    [(64, 16), (10, 8), (256, 64), (1024, 256), (4096, 512), (2**20, 512), (resource.RLIM_INFINITY, 512)],
)
def test_fragments_have_a_part_of_the_limit(soft: int, expected: int) -> None:
    assert fragments_of(soft) == expected


@pytest.mark.parametrize(("soft", "hard"), [(100, 100), (256, 300), (128, None)])
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted where Linux shows them")
def test_more_fragments_than_descriptors(tmp_path: Path, soft: int, hard: int | None) -> None:
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if hard is None else hard
    done = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "data"), str(soft), str(allowed)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    now, used, share = map(int, done.stdout.split())
    assert now == (SOFT_LIMIT if allowed == resource.RLIM_INFINITY else min(SOFT_LIMIT, allowed))
    assert share == fragments_of(now)
    assert used <= share + 40
