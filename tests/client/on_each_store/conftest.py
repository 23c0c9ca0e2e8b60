"""A store of each kind, and a table with everything in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from inspect import isgeneratorfunction
from pathlib import Path
from typing import Any

import pytest

import stelae
from stelae.client.calls import lanes
from tests.beside import Beside
from tests.client.places import PLACES, Place, kinds_of
from tests.client.simulated_place import SimulatedPlace
from tests.effort import is_soak


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kinds = kinds_of(metafunc.function.__name__)
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", kinds, indirect=True)
    if "shared_place" in metafunc.fixturenames:
        metafunc.parametrize("shared_place", kinds, indirect=True, scope="module")


VARIANTS_ELSEWHERE = 2
"""Of a test with many parameters, in a plain run, on stores that are not embedded: what a variant is about does not
depend on where the store is, and that the test holds there is seen by its first ones. A soak runs all."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if is_soak():
        return
    seen: Counter[tuple[str, str]] = Counter()
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        chosen = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        place = str(chosen.get("place", chosen.get("shared_place", "embedded")))
        test = item.nodeid.partition("[")[0]
        seen[test, place] += 1
        is_kept = place == "embedded" or "/on_each_store/" not in test or seen[test, place] <= VARIANTS_ELSEWHERE
        (kept if is_kept else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def _simulated(test: Any) -> SimulatedPlace | None:
    """The simulated store that a test has, if it has one."""
    chosen = test.callspec.params if hasattr(test, "callspec") else {}
    for name in ("place", "shared_place"):
        if name in chosen and chosen[name] == "simulated":
            place: SimulatedPlace = test._request.getfixturevalue(name)
            return place
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    place = _simulated(pyfuncitem)
    if place is None:
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    place.run(lambda: pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any, request: Any) -> Iterator[None]:
    """What opens a database for a test does it where the test runs."""
    made = fixturedef.func
    if fixturedef.argname in ("place", "shared_place") or not made.__module__.startswith(__package__):
        return (yield)
    place = _simulated(request._pyfuncitem)
    if place is None:
        return (yield)

    def make(**arguments: Any) -> Any:
        return place.run(lambda: made(**arguments))

    def make_and_end(**arguments: Any) -> Iterator[Any]:
        steps = made(**arguments)
        yield place.run(lambda: next(steps))
        place.run(lambda: next(steps, None))

    fixturedef.func = make_and_end if isgeneratorfunction(made) else make
    try:
        return (yield)
    finally:
        fixturedef.func = made


@pytest.fixture(scope="session")
def beside() -> Iterator[Beside]:
    process = Beside()
    yield process
    process.close()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path, beside: Beside) -> Iterator[Place]:
    found: Place = PLACES[request.param](tmp_path / "store", beside)
    yield found
    found.close()


@pytest.fixture(scope="module")
def shared_place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, beside: Beside
) -> Iterator[Place]:
    """For tests that change nothing."""
    found: Place = PLACES[request.param](tmp_path_factory.mktemp("shared"), beside)
    yield found
    found.close()


@pytest.fixture
def db(place: Place) -> Iterator[stelae.Database]:
    with place.open() as database:
        yield database


@pytest.fixture
def unnumbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes have no numbers here, as those that are too large for them: an outcome that is unknown is told at once."""
    monkeypatch.setattr(lanes, "BLOCKS_MAX", 0)


@pytest.fixture
def users(db: stelae.Database) -> stelae.Table:
    return db.create_table(
        "users",
        key={"id": "string"},
        groups=[
            stelae.columns(
                "profile",
                {"name": "string", "age": "int32 not null default 0", "score": "float64", "tags": "array<string>"},
                purge="max-history=5",
            ),
            stelae.cells("events", families=["click", "view"]),
        ],
        splits=["g", "p"],
    )


@pytest.fixture
def points(db: stelae.Database) -> stelae.Table:
    """A key of two columns."""
    groups = [stelae.columns("data", {"value": "int64"})]
    return db.create_table("points", key={"place": "string", "at": "int32"}, groups=groups)
