"""Which blocks a tablet lets in: of its schema, of its rows, while it takes writes at all."""

from __future__ import annotations

from collections.abc import Sequence

from stelae.format.block import Block
from stelae.model.errors import StaleSchema, TabletAway
from stelae.storage.memory.insertion import ends_of
from stelae.storage.tablet.state import TabletState


def check_rows(state: TabletState, block: Block) -> None:
    if state.is_frozen:
        check_writable([state])
    if block.schema_version != state.schema.version:
        raise StaleSchema(
            f"tablet {state.tablet} is at schema version {state.schema.version}, the block is written for "
            f"{block.schema_version}: check it against that and write it again"
        )
    if not state.rows.start and state.rows.stop is None:
        return
    for row in ends_of(block, state.active):
        if row not in state.rows:
            raise TabletAway(f"row {row!r} is not in tablet {state.tablet}, which holds {state.rows}")


def check_writable(states: Sequence[TabletState]) -> None:
    for state in (state for state in states if state.is_frozen):
        raise TabletAway(f"tablet {state.tablet} takes no writes: it is leaving this server")
