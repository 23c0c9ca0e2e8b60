"""Where the store is: options before and behind the verb, the environment, a file."""

from __future__ import annotations

from pathlib import Path

import pytest

import stelae
from stelae.launch.fragments import fragments_url
from tests.cli.running import Cli, run

MAKE = ("table", "create", "t", "--key", "id string", "--columns", "p: v string")


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    """Two stores, whose tables are called after them."""
    for name in ("first", "second"):
        Cli(tmp_path / name).done("table", "create", name, "--key", "id string", "--columns", "p: v string")
    return tmp_path / "first", tmp_path / "second"


def names(*words: str | Path) -> str:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_before_and_behind_the_verb(two: tuple[Path, Path]) -> None:
    first, second = two
    assert '"first"' in names("--path", first, "table", "list")
    assert '"second"' in names("table", "list", "--path", second)
    assert '"second"' in names("--path", first, "table", "list", "--path", second)


def test_the_environment_and_the_file_in_their_order(
    two: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    Path("stelae.toml").write_text('path = "first"')
    assert '"first"' in names("table", "list")
    monkeypatch.setenv("STELAE_PATH", str(second))
    assert '"second"' in names("table", "list")
    assert '"first"' in names("table", "list", "--path", first)
    monkeypatch.setenv("STELAE_PATH", "")
    assert '"first"' in names("table", "list")


def test_catalog_verbs_find_the_store_as_the_others_do(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = two
    monkeypatch.setenv("STELAE_PATH", str(second))
    monkeypatch.setenv("STELAE_ETCD", "localhost:1")
    both = run("catalog", "show")
    assert both.exit_code == 1
    assert "STELAE_PATH and STELAE_ETCD are both set" in both.stderr
    assert '"first"' in names("catalog", "show", "--path", first)
    assert '"first"' in names("--path", first, "catalog", "show")
    wrong = run("catalog", "show", "--path", first, "--etcd", "localhost:1")
    assert "(one of them)" in wrong.stderr


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("path = 3", "stelae.toml: path is 3; write text"),
        ('path = "a"\ncluster = "b"', "stelae.toml: give --path or --cluster, not both"),
        ("path =", "stelae.toml: "),
        ('cluster = "host"', "'host' is not host:port"),
        ("", "say where the store is"),
    ],
)
def test_a_wrong_file(settings: str, message: str) -> None:
    Path("stelae.toml").write_text(settings)
    result = run("table", "list")
    assert result.exit_code == 1
    assert f"error: {message}" in result.stderr


def test_a_cluster_or_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    both = run("table", "list", "--cluster", "host:1", "--path", tmp_path)
    assert "give --path or --cluster, not both" in both.stderr
    stored = run("table", "list", "--cluster", "host:1", "--store", tmp_path)
    assert "--store goes with --path: the cluster host:1 knows where its fragments are" in stored.stderr
    monkeypatch.setenv("STELAE_CLUSTER", "host")
    assert "'host' is not host:port" in run("table", "list").stderr
    assert "the cluster host: its catalog is read from its metastore" in run("catalog", "log").stderr
    monkeypatch.setenv("STELAE_PATH", str(tmp_path))
    assert "STELAE_PATH and STELAE_CLUSTER: give --path or --cluster, not both" in run("table", "list").stderr


def test_looking_makes_no_store(tmp_path: Path) -> None:
    for words in (("table", "list"), ("get", "t", "a"), ("scan", "t"), ("put", "t", "a"), ("table", "drop", "t")):
        result = run(*words, "--path", tmp_path / "none")
        assert result.exit_code == 1
        assert "no store in" in result.stderr
        assert "metastore.db" in result.stderr
    assert not (tmp_path / "none").exists()
    assert run(*MAKE, "--path", tmp_path / "none").exit_code == 0


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = run(*MAKE, "--path", tmp_path / "file")
    assert result.exit_code == 1
    assert "error: " in result.stderr


# -- where the fragments are


def fragments_in(place: Path) -> int:
    return len(list(place.rglob("*.parquet")))


def test_a_store_keeps_its_fragments_where_it_is_said(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    assert run(*MAKE, "--path", data, "--store", place).exit_code == 0
    with stelae.open(data) as db:
        db.table("t").put({"id": "a", "v": "b"})
        db.table("t").flush()
    assert (fragments_in(data), fragments_in(place) > 0) == (0, True)
    for words in (["--store", place.as_uri()], []):
        assert run("check", "--path", data, *words).exit_code == 0
    for verb, code in ((["table", "list"], 1), (["check"], 2)):
        wrong = run(*verb, "--path", data, "--store", "s3://bucket/a")
        assert wrong.exit_code == code
        assert "keeps its fragments in" in wrong.stderr
    unserved = run(*MAKE, "--path", tmp_path / "other", "--store", "gs://bucket/a")
    assert "nothing is served under gs: here; say file:///DIR, s3://BUCKET/PREFIX" in unserved.stderr


@pytest.mark.parametrize(
    ("own", "before", "environment", "file", "expected"),
    [
        (["--path", "a", "--store", "x"], [], {}, "", "x"),
        (["--store", "x"], ["--path", "a"], {}, "", "x"),
        (["--path", "a"], ["--store", "x"], {}, "", "x"),
        (["--path", "a"], [], {"STELAE_STORE": "x"}, "", "x"),
        ([], [], {"STELAE_PATH": "a", "STELAE_STORE": "x"}, 'store = "y"', "x"),
        ([], [], {"STELAE_PATH": "", "STELAE_STORE": ""}, 'path = "a"\nstore = "x"', "x"),
        (["--path", "a"], [], {"STELAE_PATH": "b", "STELAE_STORE": "x"}, "", None),
        (["--path", "a"], [], {}, 'path = "b"\nstore = "x"', None),
        (["--path", "a"], [], {}, 'path = "a"\nstore = "x"', "x"),
    ],
)
def test_a_place_for_fragments_goes_with_the_directory_it_is_said_with(
    own: list[str],
    before: list[str],
    environment: dict[str, str],
    file: str,
    expected: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Path("stelae.toml").write_text(file)
    assert run(*before, *MAKE, *own).exit_code == 0
    place = Path("a").absolute() if expected is None else Path(expected).absolute()
    assert fragments_url(Path("a")) == place.as_uri()


def test_a_wrong_store_in_the_file() -> None:
    Path("stelae.toml").write_text('path = "a"\nstore = 3')
    assert "stelae.toml: store is 3; write text" in run("table", "list").stderr
