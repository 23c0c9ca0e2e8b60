"""What all who belong to a cluster know, and how they prove it to each other without ever sending it.

Each side draws a nonce and puts it into its hello. A proof is the HMAC-SHA256, with the token as its key, of which side
gives it and of both hellos as they were sent: their nonces, roles, stores and versions. So a proof is good for one
connection and one direction: it cannot be given back to who made it, nor used again, and who changes a hello on its way
makes both proofs wrong. Whoever hears a proof can try tokens on it at leisure, so a token is long.

A proof says who begins a connection. That nobody reads or takes over the rest of it, TLS says.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from enum import Enum

from typing_extensions import Buffer

from stelae.model.errors import InvalidArgument

NONCE_BYTES = 32
PROOF_BYTES = 32
TOKEN_CHARS_MIN = 16
TOKEN_CHARS_MAX = 1024
_LENGTH = struct.Struct("<I")


class Prover(Enum):
    """Who gives a proof: whoever connected, or whoever was connected to."""

    CONNECTING = b"stelae proof 1: connecting"
    ACCEPTING = b"stelae proof 1: accepting"


class ClusterToken:
    """Secret: it is not shown, whoever prints what has it, and cannot be pickled."""

    __slots__ = ("_key",)

    def __init__(self, text: str) -> None:
        given: object = text
        if not isinstance(given, str):
            raise InvalidArgument(f"a cluster's token is text, not {type(given).__name__}")
        if not TOKEN_CHARS_MIN <= len(given) <= TOKEN_CHARS_MAX:
            raise InvalidArgument(
                f"a cluster's token has from {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} characters, not {len(given)}: "
                "draw one at random, with `openssl rand -hex 32`, say"
            )
        if not (given.isascii() and given.isprintable()) or " " in given:
            raise InvalidArgument("a cluster's token is of ASCII letters, digits and signs, without spaces")
        self._key = given.encode("ascii")

    def __repr__(self) -> str:
        return "ClusterToken(hidden)"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a cluster's token is not pickled: it would lie wherever that goes")

    def prove(self, prover: Prover, connecting: Buffer, accepting: Buffer) -> bytes:
        """`connecting`, `accepting`: the hellos of both sides, as bytes."""
        made = hmac.new(self._key, prover.value, hashlib.sha256)
        for hello in (connecting, accepting):
            made.update(_LENGTH.pack(memoryview(hello).nbytes))
            made.update(hello)
        return made.digest()

    def is_proof(self, proof: Buffer, prover: Prover, connecting: Buffer, accepting: Buffer) -> bool:
        """Takes the same time whatever is wrong."""
        return hmac.compare_digest(bytes(proof), self.prove(prover, connecting, accepting))
