"""What `stelae.spark` offers is there under its name, however its modules were imported before."""

from __future__ import annotations

import importlib

import pytest

import stelae.spark


@pytest.mark.parametrize("name", stelae.spark.__all__)
def test_each_name_is_a_function_whatever_was_imported_before(name: str) -> None:
    function = getattr(stelae.spark, name)
    importlib.import_module(f"stelae.spark.{stelae.spark._HOMES[name]}")
    assert getattr(stelae.spark, name) is function


def test_other_names_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = stelae.spark.nothing  # type: ignore[attr-defined]
