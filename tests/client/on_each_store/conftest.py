"""A store of each kind, and a table with everything in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stelae
from tests.beside import Beside
from tests.client.places import PLACES, Place, kinds_of


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kinds = kinds_of(metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__)
    if "place" in metafunc.fixturenames:
        metafunc.parametrize("place", kinds, indirect=True)
    if "shared_place" in metafunc.fixturenames:
        metafunc.parametrize("shared_place", kinds, indirect=True, scope="module")


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
