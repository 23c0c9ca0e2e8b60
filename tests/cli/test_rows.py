"""`stelae get|put|erase`."""

from __future__ import annotations

import pytest

from tests.cli.running import Cli

ANN = {
    "id": "ann",
    "name": "Ann",
    "age": 31,
    "score": None,
    "paid": "1.20",
    "seen": "2026-01-31T12:00:00Z",
    "tags": None,
    "photo": None,
    "click:home": {"$binary": "MQ=="},
}


def test_get(users: Cli) -> None:
    assert users.lines("get", "users", "ann") == [ANN]
    assert users.lines("get", "users", "cay", "--columns", "score,photo") == [
        {"id": "cay", "score": {"$float": "NaN"}, "photo": {"$binary": "AP8="}}
    ]
    shown = [line.split(None, 1) for line in users.done("get", "users", "ann").splitlines()]
    assert [part.strip() for part in shown[1]] == ["name", "Ann"]
    assert "NULL" in shown[3][1]
    assert "2026-01-31 12:00:00Z" in shown[5][1]
    assert "0x00ff" in users.done("get", "users", "cay")
    assert '["new","old"]' in users.done("get", "users", "bob")


def test_words_between_colons_are_no_emoji(users: Cli) -> None:
    users.done("put", "users", "col", "name=:heart: a")
    assert "name\t:heart: a\n" in users.done("get", "users", "col")
    assert ":heart: a" in users.done("scan", "users")
    assert "no row ':heart:'" in users.refused("get", "users", ":heart:")


def test_get_finds_nothing(users: Cli) -> None:
    assert users.refused("get", "users", "dan") == "no row 'dan' in users"
    assert users.refused("get", "users", "dan", "--json") == "no row 'dan' in users"
    told = users.refused("get", "users", "bob", "--columns", "click:", "--rows", "having")
    assert told == "row 'bob' of users has no click:"
    assert users.lines("get", "users", "bob", "--columns", "click:") == [{"id": "bob"}]
    assert users.lines("get", "users", "bob", "--columns", "score") == [{"id": "bob", "score": None}]
    assert "did you mean 'having'?" in users.refused("get", "users", "bob", "--rows", "havin")
    assert "at that time" in users.refused("get", "users", "ann", "--at", "2020-01-01T00:00:00Z")
    assert "did you mean 'users'?" in users.refused("get", "user", "ann")
    assert "did you mean 'name'?" in users.refused("get", "users", "ann", "--columns", "nam")
    assert users.run("get", "users").exit_code == 2


def test_get_at_a_time(users: Cli) -> None:
    txn = users.json("put", "users", "ann", "age=32")["txn"]
    users.done("put", "users", "ann", "age=33")
    assert users.lines("get", "users", "ann", "--columns", "age", "--at", str(txn)) == [{"id": "ann", "age": 32}]
    assert users.lines("get", "users", "ann", "--columns", "age", "--at", str(txn - 1)) == [{"id": "ann", "age": 31}]


@pytest.mark.usefixtures("screen")
def test_history(users: Cli) -> None:
    txn = users.json("put", "users", "ann", "age=32")["txn"]
    (found,) = users.lines("get", "users", "ann", "--history", "5", "--columns", "age,click:")
    assert [version["value"] for version in found["age"]] == [32, 31]
    assert found["age"][0]["txn"] == txn
    assert found["age"][0]["ts"].endswith("Z")
    assert found["click:home"][0]["value"] == {"$binary": "MQ=="}
    assert found["id"] == "ann"
    (short,) = users.lines("get", "users", "ann", "--history", "1", "--columns", "age")
    assert [version["value"] for version in short["age"]] == [32]
    lines = users.done("get", "users", "ann", "--history", "5", "--columns", "age").splitlines()
    assert lines[-2].split()[:2] == ["age", "32"]
    assert lines[-1].split()[0] == "31"


def test_put_words(users: Cli) -> None:
    said = users.done(
        "put", "users", "ann", "age=32", "paid=2", "tags:=[]", "name:=null", "view:x=y", 'photo:={"$binary": "AP8="}'
    )
    assert said.startswith("written 1 row at ")
    (found,) = users.lines("get", "users", "ann")
    assert found == ANN | {
        "age": 32,
        "paid": "2.00",
        "tags": [],
        "name": None,
        "view:x": {"$binary": "eQ=="},
        "photo": {"$binary": "AP8="},
    }
    users.done("put", "users", "new")
    assert users.lines("get", "users", "new", "--columns", "age") == [{"id": "new", "age": 0}]


def test_put_with_conditions(users: Cli) -> None:
    assert "row 'ann' exists already" in users.refused("put", "users", "ann", "age=1", "--if-absent")
    users.done("put", "users", "dan", "age=1", "--if-absent")
    users.done("put", "users", "ann", "age=1", "--ts", "1000")
    assert users.lines("get", "users", "ann", "--columns", "age") == [{"id": "ann", "age": 31}]
    refused = users.refused("put", "users", "--if-absent", given='{"id": "eve"}\n{"id": "ann"}\n')
    assert "row 'ann' exists already" in refused
    assert users.json("scan", "users", "--count") == {"rows": 5}


def test_put_json_lines(users: Cli) -> None:
    assert users.json("put", "users", "--json-line", '{"id": "x"}', "--json-line", '{"id": "y"}')["rows"] == 2
    many = "".join(f'{{"id": "n{n:05d}", "age": {n}}}\n' for n in range(2_500))
    assert users.json("put", "users", given=many)["rows"] == 2_500
    assert users.lines("get", "users", "n02499", "--columns", "age") == [{"id": "n02499", "age": 2_499}]
    assert users.json("put", "users", given="")["rows"] == 0


@pytest.mark.usefixtures("screen")
def test_a_bad_line_is_named_and_what_is_before_it_stays(users: Cli) -> None:
    lines = [f'{{"id": "n{n:05d}", "age": {n}}}' for n in range(1_500)]
    lines[1_200] = '{"id": "bad", "age": null}'
    result = users.run("put", "users", given="\n\n".join(lines))
    assert result.exit_code == 1
    assert "error: line 2401: column 'age' is NOT NULL" in result.stderr
    assert "1,000 rows before are written" in result.stderr
    assert users.json("scan", "users", "--prefix", "n", "--count") == {"rows": 1_000}


@pytest.mark.parametrize(
    ("words", "given", "message"),
    [
        (["ann", "age=x"], None, "column 'age': 'x' is not a int32: write a whole number"),
        (["ann", "age="], None, "(for NULL: age:=null)"),
        (["ann", "agee=1"], None, "no column 'agee'; did you mean 'age'?"),
        (["ann", "age"], None, "'age': write column=value, or column:=JSON"),
        (["ann", "age=3000000000"], None, "out of range"),
        (["ann", "id=bob"], None, "column 'id' is of the key"),
        (["ann", "clic:x=1"], None, "no family 'clic'; did you mean 'click'?"),
        (["ann", "seen=2026-01-31"], None, "has no time zone"),
        (["ann", "age:=null"], None, "NOT NULL"),
        (["ann", "--json-line", "{}"], None, "give a key and values, or --json-line"),
        (["--json-line", "[]"], None, "a row is a JSON object"),
        (["--json-line", "{"], None, "--json-line: '{' is not JSON"),
        (["--json-line", '{"age": 1}'], None, "--json-line: no value for key column 'id'"),
        ([], '{"id": "a"}\n{"id": 3}', "line 2: key column 'id': 3 (int) is not a string"),
        ([], '{"id": "a", "nme": 3}\n{"id": "b"}', "line 1: no column 'nme'"),
    ],
)
def test_put_refuses(users: Cli, words: list[str], given: str | None, message: str) -> None:
    assert message in users.refused("put", "users", *words, given=given)
    assert users.json("scan", "users", "--count") == {"rows": 3}


def test_erase(users: Cli) -> None:
    assert users.done("erase", "users", "ann", "--columns", "name,click:").startswith("erased at ")
    (found,) = users.lines("get", "users", "ann")
    assert found == {name: None if name == "name" else value for name, value in ANN.items() if name != "click:home"}
    assert list(users.json("erase", "users", "ann")) == ["txn"]
    users.refused("get", "users", "ann")
    users.done("erase", "users", "nobody")


def test_erase_a_range(users: Cli) -> None:
    assert "none of 2 rows was erased; --yes" in users.refused("erase", "users", "--start", "b")
    assert users.json("erase", "users", "--start", "b", "--stop", "c", "--yes") == {"rows": 1}
    assert users.json("erase", "users", "--prefix", "c", "--yes") == {"rows": 1}
    assert users.json("erase", "users", "--prefix", "zzz") == {"rows": 0}
    assert [row["id"] for row in users.lines("scan", "users")] == ["ann"]
    assert "erase what?" in users.refused("erase", "users")
    assert "erase what?" in users.refused("erase", "users", "ann", "--prefix", "c")
    assert "go with a single key" in users.refused("erase", "users", "--prefix", "c", "--columns", "age")


def test_compound_keys(cli: Cli) -> None:
    cli.done("table", "create", "t", "--key", "who string, n int64", "--columns", "p: v map<int32, string>")
    cli.done("put", "t", "ann", "7", 'v:=[[1, "x"]]')
    cli.done("put", "t", '{"who": "ann", "n": 8}')
    cli.done("put", "t", "--", "bob", "-3")
    assert cli.lines("get", "t", '["ann", 7]') == [{"who": "ann", "n": 7, "v": [[1, "x"]]}]
    assert [row["n"] for row in cli.lines("scan", "t", "--prefix", "ann")] == [7, 8]
    assert [row["n"] for row in cli.lines("scan", "t", "--start", '["ann", 8]')] == [8, -3]
    cli.done("erase", "t", "--", "bob", "-3")
    assert cli.json("scan", "t", "--count") == {"rows": 2}
    assert "the key has 2 parts" in cli.refused("get", "t", "ann")


def test_control_characters_are_written_out(users: Cli) -> None:
    users.done("put", "users", "--json-line", '{"id": "x", "name": "a\\u001b[31mb\\n[red]c"}')
    for words in (("get", "users", "x"), ("scan", "users", "--prefix", "x")):
        assert "a\\x1b[31mb\\n[red]c" in users.done(*words)


def test_what_is_no_terminal_has_no_width(users: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    users.done("put", "users", "x", f"name={'word ' * 60}")
    assert "word " * 60 in users.done("get", "users", "x")
    assert "word " * 60 in users.done("scan", "users", "--prefix", "x")


@pytest.mark.parametrize("word", ["name=x", "NAME=x", "nam=x", "age:=1", "click:home=1", "id=ann", "a=b", "YWJj="])
def test_a_value_in_the_place_of_the_key_is_refused(users: Cli, word: str) -> None:
    said = users.refused("put", "users", word)
    assert said.startswith(f"'{word}' is a value, and the key stands before values: ID {word}; a row whose key is")
    assert users.json("scan", "users", "--count") == {"rows": 3}
    users.done("put", "users", "--json-line", f'{{"id": "{word}"}}')
    assert users.lines("get", "users", word)[0]["id"] == word


def test_a_value_of_any_family_is_refused_as_a_key_too(cli: Cli) -> None:
    cli.done("table", "create", "wild", "--key", "id string", "--cells", "all")
    cli.done("table", "create", "two", "--key", "id string, n int64", "--cells", "all")
    for word in ("zz:q=v", "x=1", "odd=b"):
        assert "the key stands before values" in cli.refused("put", "wild", word)
        assert "the key stands before values" in cli.refused("put", "wild", word, "f:q=1")
    assert cli.json("scan", "wild", "--count") == {"rows": 0}
    cli.done("put", "two", '["a=b", 1]', "f:q=1")
    assert cli.lines("scan", "two")[0]["id"] == "a=b"


@pytest.mark.parametrize("bounds", [["--prefix", ""], ["--start", ""], ["--start", "", "--stop", ""]])
def test_a_range_without_bounds_is_refused(users: Cli, bounds: list[str]) -> None:
    assert "`stelae table truncate users` erases all rows" in users.refused("erase", "users", *bounds, "--yes")
    assert users.json("scan", "users", "--count") == {"rows": 3}
