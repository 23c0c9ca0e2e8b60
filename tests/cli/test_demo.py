"""`stelae demo`, as a person runs it: it tells its story, leaves the directory that it names, and nothing when it is
interrupted."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from xml.etree import ElementTree

import pytest
from rich.console import Console

import stelae
from stelae.cli.demo.charts import PairedBar, latency_chart, paired_chart, steps_chart
from stelae.cli.demo.fleet import fleet_batch, make_fleet
from stelae.cli.demo.report import next_commands, report_text
from stelae.cli.demo.stage import DemoFigure, DemoStage, DemoStory, Latency, StepTaken, percentile, short_time
from stelae.cli.demo.traffic import Traffic, slices, sparks
from tests.effort import HANG_S

_SPARK_CALLS = ("bash", "cat", "dirname", "env", "head", "ps", "sh", "tr", "uname")
_END_S_MAX = 2 * HANG_S
_PROGRAM = "import sys; {before}; from stelae.cli.app import main; main()"


def started(*arguments: str | Path, temporary: Path, before: str = "pass", **variables: str) -> subprocess.Popen[str]:
    """`before`: what the process does first."""
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(before=before), "demo", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), **variables},
        start_new_session=True,
        cwd=temporary,
    )


def is_running(group: int) -> bool:
    """What Spark has started ends when it notices that Spark has: that is waited for, for a while."""
    never, looks_left = Event(), 1_000
    while looks_left:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        never.wait(0.05)
        looks_left -= 1
    return True


def is_self_contained(page: str) -> bool:
    """Every picture is well formed, and nothing comes from elsewhere."""
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    for picture in pictures:
        ElementTree.fromstring(picture)
    outside = page.replace("http://www.w3.org/2000/svg", "")
    return not re.search(r"https?:|src=|href=|@import|url\(", outside)


def acknowledged(told: str) -> int:
    """How many rows the killed writer had acknowledged: some more than were waited for, if it was quick."""
    (found,) = re.findall(r"all (\d+) acknowledged rows are there", told)
    assert int(found) >= 300
    return int(found)


def test_without_pyspark_it_says_so_and_shows_the_embedded_store(tmp_path: Path) -> None:
    hidden = "sys.modules['pyspark'] = None; sys.modules['duckdb'] = None"
    demo = started("--rows", "3000", "--dir", "kept", "--report", "seen.html", temporary=tmp_path, before=hidden)
    told, complaints = demo.communicate()
    assert demo.returncode == 0, complaints
    assert "in a clone of the repository: pip install '.[spark]'" in told
    assert "3,000 rows in" in told
    assert "Conflict" in told
    assert re.search(r"its states, newest first: returned, lent, (\w+); with at= it is still \1", told)
    promised = acknowledged(told)
    assert "the counter is 400" in told
    assert "pyarrow reads it as well" in told
    assert "whole: 2 tables" in told
    assert "\x1b" not in told
    assert max(len(line) for line in told.splitlines()) < 400
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "seen.html"]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["store"]
    page = (tmp_path / "seen.html").read_text("utf-8")
    assert is_self_contained(page)
    assert f"0 of {promised}" in page
    assert "<h1>3,000 rows, one copy:<br>put, served, changed, scanned</h1>" in page
    assert "Spark" not in page
    assert "Open a file of the store with pyarrow" in page
    assert "DuckDB" not in page
    with stelae.open(tmp_path / "kept" / "store", read_only=True) as kept:
        assert kept.tables() == ["counters", "fleet"]
        assert kept.table("fleet").count(prefix="dev-") == 3_000
        # The last row may have been durable when the writer was killed, and not acknowledged any more.
        assert kept.table("fleet").count(prefix="killed-") - promised in (0, 1)
    said = told.partition("Go on from here:")[2].splitlines()[1:-1]
    assert len(said) == 6
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    tried = subprocess.run(
        ["/bin/sh", "-ec", "\n".join(said)], env=environment, capture_output=True, text=True, check=False
    )
    assert tried.returncode == 0, tried.stderr
    assert tried.stdout.splitlines()[-1].isdecimal()
    again = started("--dir", "kept", temporary=tmp_path)
    assert "kept is there already" in again.communicate()[1]
    assert again.returncode == 1


def test_a_report_that_could_not_be_written_is_refused_at_once(tmp_path: Path) -> None:
    demo = started("--report", "nowhere/seen.html", temporary=tmp_path)
    assert "nowhere" in demo.communicate()[1]
    assert demo.returncode == 1
    assert list(tmp_path.iterdir()) == []


def interrupted(demo: subprocess.Popen[str], moment: str, interrupt: Callable[[int, int], None]) -> None:
    """At the moment that it says this, and it ends as an interrupted command does, with all that it started."""
    assert demo.stdout is not None
    has_come = any(moment in line for line in demo.stdout)
    if has_come:
        interrupt(demo.pid, signal.SIGINT)
    try:
        _, complaints = demo.communicate(timeout=_END_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(demo.pid, signal.SIGKILL)
        raise
    assert (has_come, demo.returncode) == (True, 130), complaints
    assert "Traceback" not in complaints
    assert not is_running(demo.pid)


@pytest.mark.parametrize(
    ("moment", "interrupt"),
    [
        pytest.param("== 2.", os.killpg, id="among-single-rows"),
        pytest.param(" owns the store", os.killpg, id="with-a-writer"),
        pytest.param(" owns the store", os.kill, id="with-a-writer-that-is-not-told"),
        pytest.param("== 5.", os.killpg, id="while-a-process-starts"),
        pytest.param(" attaches", os.kill, id="with-a-second-process-that-is-not-told"),
    ],
)
def test_interrupted_it_leaves_nothing(tmp_path: Path, moment: str, interrupt: Callable[[int, int], None]) -> None:
    demo = started("--rows", "3000", "--no-spark", temporary=tmp_path, PYTHONUNBUFFERED="1")
    interrupted(demo, moment, interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
def test_with_spark_and_without_java_on_the_path(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in _SPARK_CALLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    demo = started("--rows", "2000", "--dir", "kept", temporary=tmp_path, PATH=str(tools), JAVA_HOME="")
    told, complaints = demo.communicate(timeout=_END_S_MAX)
    assert demo.returncode == 0, complaints
    assert "2,000 rows in" in told
    assert "Spark scanned all 2,000 rows" in told
    assert re.search(r"│ 5\.0\.0 +│ +0 │ +[1-9]\d* │", told)
    assert "job 'rollout-5.0.0' was done before" in told
    assert "verify finds it: 20 rows are only in the backup" in told
    (same,) = re.findall(r"every value of ([\d,]+) rows is the same as in the backup", told)
    assert int(same.replace(",", "")) - 2_000 - acknowledged(told) in (0, 1)
    assert "whole: 1 table, 8 tablets" in told
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["backups", "report.html", "store"]
    page = (tmp_path / "kept" / "report.html").read_text("utf-8")
    assert is_self_contained(page)
    assert page.count("<svg") == 1
    assert "<h1>2,000 rows, one copy:<br>loaded, served, scanned, changed, restored</h1>" in page
    assert "Spark jobs and single rows on the same data" in page
    assert "min-width: 5" not in page, "a plot that a phone would scroll sideways"
    assert "p99 of reading one row while Spark scans" in page


@pytest.mark.spark
def test_interrupted_with_spark_it_leaves_nothing(tmp_path: Path) -> None:
    demo = started("--rows", "50000", temporary=tmp_path, PYTHONUNBUFFERED="1")
    interrupted(demo, "== 1.", os.killpg)
    assert list(tmp_path.iterdir()) == []


def test_traffic_that_meets_an_error_says_so_at_its_end(tmp_path: Path) -> None:
    stage = DemoStage(tmp_path, 10, Console())
    stage.open()
    with stage.db:
        stage.fleet = make_fleet(stage.db, 10, 2)
        stage.fleet.put_many(fleet_batch(0, 10))
        with Traffic(stage) as traffic:
            while not traffic.took(is_update=True):
                traffic.wait(0.05, lambda: None)
        assert len(traffic.took(is_update=False)) > len(traffic.took(is_update=True))
        stage.fleet.erase_range(prefix="dev-")
        with pytest.raises(stelae.Corruption, match=r"dev-0000000\d is not there"), Traffic(stage) as traffic:
            traffic.wait(60.0, lambda: None)


# -- figures and plots


def test_percentiles() -> None:
    assert [percentile(range(100), part) for part in (0.0, 0.5, 0.99, 1.0)] == [0, 50, 99, 99]
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([], 0.99) == 0.0


def test_times_as_people_say_them() -> None:
    assert [short_time(seconds) for seconds in (12e-6, 0.0009996, 0.0123, 0.9999, 65.0)] == [
        *("12 us", "1.0 ms", "12.3 ms", "1.0 s", "65.0 s")
    ]


def test_slices_are_of_reads_by_the_time_they_were_sent() -> None:
    sent = [Latency(0.1, 1.0), Latency(0.2, 3.0), Latency(0.3, 9.0, is_update=True), Latency(1.1, 5.0)]
    assert slices(sent, 0.99, 0.5) == [(0.25, 3.0), (1.25, 5.0)]
    assert sparks([Latency(0.0, 1.0), Latency(0.3, 8.0), Latency(0.6, 4.0)]) == "▂█▅"
    assert sparks([]) == ""


def test_a_slow_moment_stands_higher_in_the_plot() -> None:
    page = latency_chart([Latency(0.1, 1e-4), Latency(0.9, 1e-2), Latency(1.0, 1e-3, is_update=True)], [(0.5, 1.0)])
    (line,) = re.findall(r'points="([^"]+)" class="line worst"', page)
    (x_one, y_one), (x_other, y_other) = ([float(part) for part in point.split(",")] for point in line.split())
    assert x_one < x_other
    assert y_one > y_other
    assert page.count('class="band"') == 1


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    page = paired_chart([PairedBar("a<b", 50, 100), PairedBar("none", 0, 25)], ("then", "now"), "things")
    assert [float(each) for each in re.findall(r"width:([\d.]+)%", page)] == [39.0, 78.0, 0.3, 19.5]
    assert "a&lt;b" in page
    assert '<div class="axis">things</div>' in page
    steps = steps_chart([StepTaken("one", 1.0), StepTaken("two", 2.0)])
    assert [float(each) for each in re.findall(r"margin-left:([\d.]+)%", steps)] == [0.0, 25.0]
    assert [float(each) for each in re.findall(r";width:([\d.]+)%", steps)] == [25.0, 50.0]


def test_axes_have_titles() -> None:
    page = latency_chart([Latency(0.1, 1e-4), Latency(0.9, 1e-2)], [])
    assert ">time of one request</text>" in page
    assert ">seconds since the first request</text>" in page


def test_a_report_says_when_where_and_what_next() -> None:
    story = DemoStory(1_000, [], [StepTaken("only", 1.0)], store="/tmp/a b/store", taken_ms=1_767_225_600_000)
    page = report_text(story)
    assert "2026-01-01 00:00 UTC, " in page
    assert re.search(r"\d+ cores, \d+ GiB of memory, stelae ", page)
    assert "export STELAE_PATH=&#x27;/tmp/a b/store&#x27;" in page
    assert 'name="viewport"' in page
    for command in next_commands(story)[1:-1]:
        run_words = shlex.split(command)
        assert run_words[0] == "stelae"
    assert "Go on from here" not in report_text(DemoStory(1_000, [], [StepTaken("only", 1.0)]))


def test_a_report_of_little_is_whole() -> None:
    figures = [
        DemoFigure("a & b", "p50 1 us, p99 <2> ms", "worst"),
        DemoFigure("more", "7"),
        *(DemoFigure("rate", f"{rate:,} rows/s", "rate") for rate in (1_234, 12_345, 123_456, 2_345_678)),
    ]
    page = report_text(DemoStory(1_000, figures, [StepTaken("only", 1.0)]))
    assert is_self_contained(page)
    assert "<b>&lt;2&gt; ms</b><span>worst</span>" in page
    assert re.findall(r"<b>([^<]*) rows/s</b>", page) == ["1,234", "12,000", "123,000", "2.3 million"]
    assert page.count('class="card"') == 5
    assert "<td>a &amp; b</td>" in page
