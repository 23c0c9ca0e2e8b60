"""`/metrics` of a master and of a shard: what they tell, and to whom."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

import stelae
from stelae.adapters.threads import LoopThread
from stelae.launch.metrics import MetricsPage, check_metrics_binding
from stelae.model.errors import InvalidArgument
from stelae.service.exposition import METRICS
from tests.cluster_of_threads import Cluster
from tests.effort import HANG_S
from tests.service.test_exposition import read


def told(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=HANG_S) as answer:
        return read(answer.read().decode())


def test_a_master_and_a_shard(tmp_path: Path) -> None:
    with Cluster(tmp_path, metrics="127.0.0.1:0") as cluster, stelae.connect(cluster.address) as db:
        assert cluster.master is not None
        assert cluster.shard is not None
        db.create_table("t", {"k": "string"}, [stelae.columns("g", {"v": "int64"})]).put({"k": "a", "v": 1})
        master, shard = told(cluster.master.metrics), told(cluster.shard.metrics)
        assert master['stelae_leading{process="master-1",role="master"}'] == 1
        assert master['stelae_tables{process="master-1",role="master"}'] == 1
        assert master['stelae_tables_created_total{process="master-1",role="master"}'] == 1
        assert master['stelae_elections_total{process="master-1",role="master"}'] == 0
        for name in ("silent_shards", "tablets_not_running", "collection_put_off_seconds"):
            assert master[f'stelae_{name}{{process="master-1",role="master"}}'] == 0
        assert shard['stelae_leases_lost_total{process="node-1/0",role="shard"}'] == 0
        assert shard['stelae_connections{process="node-1/0",role="shard"}'] >= 1
        assert shard['stelae_unflushed_bytes{process="node-1/0",role="shard"}'] > 0
        for found in (master, shard):
            (used,) = (value for name, value in found.items() if name.startswith("process_cpu_seconds_total"))
            assert used > 0
        described = {metric.name for metric in METRICS.values()}
        assert {name.partition("{")[0] for name in (*master, *shard)} <= described
        address = cluster.shard.metrics
    with pytest.raises(urllib.error.URLError):
        told(address)


def test_what_does_not_serve_says_so() -> None:
    loop = LoopThread("metrics")
    page = MetricsPage(loop, "127.0.0.1:0", "n1/0", "shard")
    try:
        with pytest.raises(urllib.error.HTTPError, match="503") as refused:
            told(page.address)
        assert refused.value.read() == b"shard n1/0 does not serve now\n"
        page.tell(lambda: {"tables": 2})
        assert told(page.address)['stelae_tables{process="n1/0",role="shard"}'] == 2
        page.hush()
        with pytest.raises(urllib.error.HTTPError, match="503"):
            told(page.address)
    finally:
        page.close()
        loop.close()


def test_whom_it_is_told() -> None:
    assert not check_metrics_binding("127.0.0.1:9100", insecure=False)
    assert not check_metrics_binding("[::1]:9100", insecure=True)
    assert check_metrics_binding("0.0.0.0:9100", insecure=True)
    with pytest.raises(InvalidArgument, match="is reached from other machines, and knows neither token nor TLS"):
        check_metrics_binding("0.0.0.0:9100", insecure=False)
    with pytest.raises(InvalidArgument, match="is not host:port"):
        check_metrics_binding("9100", insecure=False)
