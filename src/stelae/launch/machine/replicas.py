"""How many replicas the tables of a cluster on one machine have, if they name no zone: what the default zone says."""

from __future__ import annotations

from stelae.adapters.clock import SystemClock
from stelae.adapters.rng import SystemRng
from stelae.client.calls.retries import Patience
from stelae.launch.access import find_access
from stelae.launch.connecting import connect_session
from stelae.model.errors import InvalidArgument, InvalidSchema
from stelae.service.spaces import AlterZoneAsk


def set_replicas(masters: str, replicas: int, release: str) -> None:
    """Of tables that are made in the default zone from now on; more than half of them acknowledge each write. Nothing
    is done if it is so already; InvalidArgument if the zone's tables do not let it be changed."""
    patience = Patience(SystemClock(), SystemRng())
    session = connect_session(masters, patience, access=find_access(), release=release)
    try:
        zones = session.ask(lambda backend, until: backend.spaces(deadline=until)).zones
        (zone,) = [each for each in zones if each.is_default]
        if zone.replicas == replicas:
            return
        ask = AlterZoneAsk(zone.name, replicas=replicas, min_replicas=replicas // 2 + 1)
        session.ask(lambda backend, until: backend.change_spaces(ask, deadline=until))
    except (InvalidArgument, InvalidSchema) as error:
        raise InvalidArgument(
            f"--replicas {replicas}: {error}. Leave out --replicas, and make a zone for new tables: stelae zone create "
            f"NAME --replicas {replicas} --min-replicas {replicas // 2 + 1} (see docs/cluster.md)"
        ) from None
    finally:
        session.close()
