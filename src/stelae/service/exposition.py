"""A process's numbers as Prometheus reads them: its text format, version 0.0.4.

The numbers are those of `db.metrics()`, each under the name that Prometheus' conventions want, with what it is and what
it says. A number that is not in the table here is told all the same, untyped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "stelae_"
_COUNTER, _GAUGE, _UNTYPED = "counter", "gauge", "untyped"


class Metric(msgspec.Struct, frozen=True):
    """What Prometheus is told of a number. `labels`: what tells it from others of the same name."""

    name: str
    kind: str
    words: str
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


def _gauge(name: str, words: str) -> Metric:
    return Metric(PREFIX + name, _GAUGE, words)


def _counter(name: str, words: str, **labels: str) -> Metric:
    return Metric(f"{PREFIX}{name}_total", _COUNTER, words, labels)


_REFUSED = ("handshakes_refused", "Who was not let in.")
METRICS: Mapping[str, Metric] = {
    "tables": _gauge("tables", "Tables that are not dropped."),
    "tablets": _gauge("tablets", "Tablets, those of the store's own tables included."),
    "catalog_version": _gauge("catalog_version", "The version of the catalog that the process knows."),
    "visible_txn": _gauge("visible_txn", "The newest snapshot."),
    "unflushed_bytes": _gauge("unflushed_bytes", "Rows in memory that are not in fragments yet."),
    "log_segments": _gauge("log_segments", "Files of the log."),
    "log_bytes": _gauge("log_bytes", "What the next start after a crash would read."),
    "fragments": _gauge("fragments", "Files of data in use."),
    "fragment_bytes": _gauge("fragment_bytes", "Bytes of these files."),
    "cache_bytes": _gauge("cache_bytes", "Blocks in memory."),
    "cache_capacity_bytes": _gauge("cache_capacity_bytes", "As many bytes of blocks may be in memory."),
    "cache_hits": _counter("cache_hits", "Blocks that were in memory."),
    "cache_misses": _counter("cache_misses", "Blocks that were read from files."),
    "recovery_seconds": _gauge("recovery_seconds", "How long opening took."),
    "flushes": _counter("flushes", "How often memory was written to files."),
    "flushed_records": _counter("flushed_records", "Records written from memory to files."),
    "flushed_bytes": _counter("flushed_bytes", "Bytes written from memory to files."),
    "flush_seconds": _counter("flush_seconds", "Time that it took to write memory to files."),
    "compactions": _counter("compactions", "How often files were merged."),
    "compaction_read_bytes": _counter("compaction_read_bytes", "Bytes read to merge files."),
    "compacted_records": _counter("compacted_records", "Records written when files were merged."),
    "compacted_bytes": _counter("compacted_bytes", "Bytes written when files were merged."),
    "compaction_seconds": _counter("compaction_seconds", "Time that it took to merge files."),
    "splits": _counter("splits", "Tablets that became two."),
    "joins": _counter("joins", "Tablets that two became."),
    "collected_files": _counter("collected_files", "Files deleted because nobody needed them."),
    "collected_bytes": _counter("collected_bytes", "Bytes of files deleted because nobody needed them."),
    "collected_segments": _counter("collected_segments", "Files of the log deleted because nobody needed them."),
    "collected_log_bytes": _counter("collected_log_bytes", "Bytes of the log deleted because nobody needed them."),
    "loads": _counter("loads", "Jobs that loaded a table."),
    "loaded_records": _counter("loaded_records", "Records that jobs loaded."),
    "loaded_bytes": _counter("loaded_bytes", "Bytes that jobs loaded."),
    "expired_tickets": _counter("expired_tickets", "Jobs that ended without a word."),
    "overloads": _counter("overloads", "How often memory was full and writers had to wait."),
    "disk_errors": _counter("disk_errors", "How often the disk was full or failed."),
    "tables_created": _counter("tables_created", "Tables made."),
    "tables_dropped": _counter("tables_dropped", "Tables dropped."),
    "unknown_file_alarms": _counter("unknown_file_alarms", "Files found of tables that the catalog has never made."),
    "owners_lost": _counter("owners_lost", "Processes that had the store and are gone."),
    "takeovers": _counter("takeovers", "How often this process took the store over."),
    "takeover_seconds": _counter("takeover_seconds", "Time that it took to take the store over."),
    "leases_lost": _counter("leases_lost", "How often the shard could not renew its lease in time."),
    "clock_alarms": _counter("clock_alarms", "How often the shard's clock was found too far from the master's."),
    "leads_refused": _counter("leads_refused", "How often a shard could not lead a tablet that it was asked to lead."),
    "elections": _counter("elections", "How often this master had another server lead a tablet."),
    "collections_put_off": _counter("collections_put_off", "How often files could not be collected."),
    "shards_removed": _counter("shards_removed", "Shards taken out of the cluster for good."),
    "connections": _gauge("connections", "Connections that are open."),
    **{
        f"handshakes_refused_{kind}": _counter(*_REFUSED, kind=kind)
        for kind in ("no_token", "wrong_token", "other_store", "tls", "protocol", "full", "slow", "crowded")
    },
    "lease_is_valid": _gauge("lease_is_valid", "1 while the shard has its lease, and answers about rows."),
    "leading": _gauge("leading", "1 if this master leads, 0 if it stands by."),
    "guard_number": _gauge("guard_number", "How many times a master has begun to lead, as far as this one knows."),
    "silent_shards": _gauge("silent_shards", "Shards that the master that leads has not heard of lately."),
    "tablets_not_running": _gauge("tablets_not_running", "Tablets that are still to be made."),
    "collection_put_off_seconds": _gauge(
        "collection_put_off_seconds", "Time since files could not be collected, 0 if the last time all went well."
    ),
    "cpu_seconds": Metric("process_cpu_seconds_total", _COUNTER, "Processor time of the process."),
    "resident_bytes": Metric("process_resident_memory_bytes", _GAUGE, "Memory of the process."),
    "started_seconds": Metric("process_start_time_seconds", _GAUGE, "When the process began, in seconds since 1970."),
}
"""By its name in `db.metrics()`."""

_SUMS = frozenset({"handshakes_refused"})
"""Sums of numbers that are told one by one: whoever reads them adds them up."""


def exposed(numbers: Mapping[str, object], labels: Mapping[str, str]) -> str:
    """As text. `labels`: which process it is. What is no number is left out."""
    found: dict[str, list[tuple[Metric, float]]] = {}
    for name, value in numbers.items():
        if isinstance(value, int | float) and name not in _SUMS:
            metric = METRICS.get(name) or Metric(PREFIX + name, _UNTYPED, "A number of the process.")
            found.setdefault(metric.name, []).append((metric, +value))
    return "".join(line for name, some in found.items() for line in _lines(name, some, labels))


def _lines(name: str, some: Iterable[tuple[Metric, float]], labels: Mapping[str, str]) -> list[str]:
    metrics = list(some)
    first, _ = metrics[0]
    head = [f"# HELP {name} {_escaped(first.words)}\n", f"# TYPE {name} {first.kind}\n"]
    return head + [f"{name}{_label_words({**labels, **metric.labels})} {value!r}\n" for metric, value in metrics]


def _label_words(labels: Mapping[str, str]) -> str:
    pairs = [f"{name}={_quoted(value)}" for name, value in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _quoted(value: str) -> str:
    return '"' + _escaped(value).replace('"', '\\"') + '"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
