"""Kudu as a server of benches: a master, and one tablet server or several."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from made_rows import place
from server_processes import HOST, Member, Server, client_module
from spark_peers import PeerFailed

from stelae.adapters.free_ports import choose_free

_TABLETS_MAX = 20_000


@contextmanager
def serve_kudu(home: Path | None, servers: int = 1) -> Iterator[Server]:
    """`home`: where `bin/kudu-master` and `bin/kudu-tserver` are, and the jars of kudu-client, anywhere below. The
    endpoint: the master, and the jars. What it brings of Kerberos may not run on another system than it was built on:
    without those files it takes the system's."""
    if home is None:
        raise PeerFailed(
            "say with --kudu where Maven Central's kudu-binary (linux-x86_64) was unpacked, and where the jars of its "
            "kudu-client lie"
        )
    programs = {path.name: path for path in home.rglob("bin/kudu-*") if os.access(path, os.X_OK)}
    jars = sorted(str(path) for path in home.rglob("*.jar") if not path.name.startswith("kudu-binary"))
    if not {"kudu-master", "kudu-tserver"} <= set(programs) or not any("kudu-client" in jar for jar in jars):
        raise PeerFailed(
            f"{home}: below it there must be bin/kudu-master and bin/kudu-tserver, which may be executed, and "
            "kudu-client-*.jar with the jars it needs"
        )
    client_module("jpype", "JPype1")
    with place("kudu") as directory, ExitStack() as ends:
        ports = choose_free(HOST, 1 + servers)
        common = ["--unlock_unsafe_flags", "--unlock_experimental_flags", "--time_source=system_unsync"]
        common += ["--log_force_fsync_all=true", "--webserver_enabled=false"]
        common += ["--rpc_encryption=disabled", "--rpc_authentication=disabled"]
        # It would ask who hosts the machine, to find a clock there: nobody outside is asked.
        asked = ("aws_instance_id_url", "azure_instance_id_url", "gce_instance_id_url", "openstack_metadata_url")
        common += [f"--cloud_{each}=http://{HOST}:1/" for each in asked]
        environment = os.environ | {"SASL_PATH": os.pathsep.join(map(str, home.rglob("sasl2")))}
        made = []
        for number, port in enumerate(ports):
            own = directory / f"member-{port}"
            words = [f"--fs_wal_dir={own / 'wal'}", f"--fs_data_dirs={own / 'data'}", f"--log_dir={own}"]
            words += [f"--rpc_bind_addresses={HOST}:{port}"]
            if number:
                program = "kudu-tserver"
                words.append(f"--tserver_master_addrs={HOST}:{ports[0]}")
            else:
                program = "kudu-master"
                words += [f"--max_create_tablets_per_ts={_TABLETS_MAX}", f"--default_num_replicas={min(servers, 3)}"]
            made.append(Member([str(programs[program]), *common, *words], own, port, {"env": environment}))
            ends.callback(made[-1].end)
            made[-1].start()
        said = subprocess.run([programs["kudu-tserver"], "--version"], capture_output=True, text=True, check=False)
        version = [*said.stdout.split(), "", ""][1]
        title = f"Kudu {version}, log_force_fsync_all" + (f", {servers} tablet servers" if servers > 1 else "")
        endpoint = json.dumps({"master": f"{HOST}:{ports[0]}", "jars": jars, "replicas": min(servers, 3)})
        yield Server(title, endpoint, tuple(member.pid for member in made), tuple(made[1:]))
