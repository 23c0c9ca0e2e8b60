"""A cluster of one master and one shard, with a token and perhaps TLS.

python -m tests.launch.token_cluster <directory>
    a process that runs both until its standard input ends, and says where they serve
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from stelae.launch.access import Access
from stelae.launch.processes import MasterOptions, MasterProcess, ShardOptions, ShardProcess
from stelae.wire.proofs import ClusterToken

TOKEN = "89ab" * 8
NO_ACCESS = Access()


def master_options(
    directory: Path, access: Access = NO_ACCESS, listen: str = "127.0.0.1:0", *, insecure: bool = False
) -> MasterOptions:
    metastore, store = f"sqlite://{directory / 'metastore'}", str(directory / "store")
    return MasterOptions("m1", directory / "master", metastore, store, listen, access, insecure)


def shard_options(directory: Path, access: Access = NO_ACCESS) -> ShardOptions:
    metastore, store = f"sqlite://{directory / 'metastore'}", str(directory / "store")
    return ShardOptions("n1", directory / "shard", metastore, store, access=access, node="a-node")


@contextmanager
def token_cluster(
    directory: Path, access: Access, shard_access: Access | None = None
) -> Iterator[tuple[MasterProcess, ShardProcess]]:
    """`shard_access`: if the shard has another one."""
    with ExitStack() as ends:
        master = MasterProcess(master_options(directory, access))
        ends.callback(master.close)
        shard = ShardProcess(shard_options(directory, shard_access or access))
        ends.callback(shard.close)
        yield master, shard


def main() -> None:
    with token_cluster(Path(sys.argv[1]), Access(ClusterToken(TOKEN))) as (master, shard):
        sys.stdout.write(f"{master.address} {shard.address}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
