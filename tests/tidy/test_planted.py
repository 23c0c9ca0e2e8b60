"""The README's tables have all bugs that are planted, with the seeds that find them."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.planted_seeds import rows

README = Path(__file__).parents[1] / "cluster" / "README.md"


def test_every_planted_bug_is_in_a_table_with_its_seed() -> None:
    text = README.read_text()
    missing = [row for row in rows() if row not in text]
    assert missing == [], "\n".join(missing)
