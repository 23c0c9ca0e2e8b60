"""Numbers as Prometheus reads them."""

from __future__ import annotations

import re
from pathlib import Path

import stelae
from stelae.service.exposition import METRICS, exposed

_LABEL = r'[a-z]+="(?:[^"\\\n]|\\["\\n])*"'
LINE = re.compile(rf"([a-z_][a-z0-9_]*)(\{{{_LABEL}(?:,{_LABEL})*\}})? (\S+)")


def read(text: str) -> dict[str, float]:
    """Each line with a number, by its name and labels, as whoever collects them reads it."""
    found = {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if not line.startswith("# "):
            matched = LINE.fullmatch(line)
            assert matched, line
            found[matched[1] + (matched[2] or "")] = float(matched[3])
    return found


def test_names_kinds_and_labels() -> None:
    numbers = {"tables": 3, "flushes": 2, "flush_seconds": 0.25, "words": "none"}
    assert exposed(numbers, {"process": "n1/0", "role": "shard"}) == (
        "# HELP stelae_tables Tables that are not dropped.\n"
        "# TYPE stelae_tables gauge\n"
        'stelae_tables{process="n1/0",role="shard"} 3\n'
        "# HELP stelae_flushes_total How often memory was written to files.\n"
        "# TYPE stelae_flushes_total counter\n"
        'stelae_flushes_total{process="n1/0",role="shard"} 2\n'
        "# HELP stelae_flush_seconds_total Time that it took to write memory to files.\n"
        "# TYPE stelae_flush_seconds_total counter\n"
        'stelae_flush_seconds_total{process="n1/0",role="shard"} 0.25\n'
    )


def test_what_is_counted_by_kind_is_one_metric() -> None:
    text = exposed({"handshakes_refused": 3, "handshakes_refused_tls": 1, "handshakes_refused_slow": 2}, {})
    assert text.count("# TYPE") == 1
    assert read(text) == {
        'stelae_handshakes_refused_total{kind="tls"}': 1,
        'stelae_handshakes_refused_total{kind="slow"}': 2,
    }


def test_what_nobody_described_is_told_all_the_same() -> None:
    assert "# TYPE stelae_new_thing untyped\nstelae_new_thing 1\n" in exposed({"new_thing": True}, {})


def test_labels_of_any_text() -> None:
    (line,) = read(exposed({"tables": 1}, {"process": 'a"b\\c\nd'}))
    assert line == 'stelae_tables{process="a\\"b\\\\c\\nd"}'


def test_every_number_of_a_store_is_described(tmp_path: Path) -> None:
    with stelae.open(tmp_path) as db:
        numbers = db.metrics()
    assert numbers.keys() <= METRICS.keys()
    assert len(read(exposed(numbers, {}))) == len(numbers)


def test_names_follow_the_conventions() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"(stelae|process)_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.words.endswith(".")
