"""Java in the process of a bench's client (JPype): there can be one, started once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server_processes import client_module
from spark_peers import PeerFailed


def start_java(classpath: Sequence[str], *flags: str) -> Any:
    """The module `jpype`, with Java running."""
    jpype = client_module("jpype", "JPype1")
    try:
        jpype.startJVM(*flags, classpath=list(classpath), convertStrings=False)
    except Exception as error:
        raise PeerFailed(f"Java does not start: {error}") from error
    # What a client says of members that are away is no news to who takes them away.
    jpype.JClass("java.util.logging.LogManager").getLogManager().reset()
    return jpype
