"""TLS apart from any socket: bytes that came are opened, bytes that go are sealed, on an event loop or off it alike.

Both sides are Stelae's, so nothing older than TLS 1.3 is spoken, and no tickets for later are given: nobody sends what
was not asked for, and a connection without news is quiet.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from stelae.model.errors import InvalidArgument, PermissionDenied, ProtocolError, StelaeError

OPENED_BYTES = 64 * 1024
"""What is opened at once; a record has a quarter of it."""

FIRST_BYTES = 6
"""So many tell TLS from frames."""

REFUSAL = b"\x15\x03\x03\x00\x02\x02\x46"
"""An alert: this version is not spoken here. What a side without TLS answers to one that begins with it."""

NOT_TOLD = (
    "the other side speaks TLS, and this side was told of none: name its files with tls=..., or STELAE_TLS_CA, or "
    "leave TLS out there"
)
"""What a side without TLS says of one that begins with it."""

_ALERT, _HANDSHAKE, _MAJOR, _MINOR_MAX = 0x15, 0x16, 0x03, 0x04


class TlsFiles(msgspec.Struct, frozen=True):
    """Where the PEM files of this process are.

    A server has a certificate and its key. Whoever connects has the `authority` that signed it (None: those that the
    system trusts), and the certificate is for the host of the address, by its name or number. With `is_mutual` a server
    lets in only who shows a certificate signed by `authority`; who connects shows theirs if they have one.
    """

    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    is_mutual: bool = False

    def server_context(self) -> ssl.SSLContext:
        if self.certificate is None or self.key is None:
            raise InvalidArgument("TLS: a server needs a certificate and its key")
        if self.is_mutual and self.authority is None:
            raise InvalidArgument("TLS: to ask others for certificates, name the authority that signs them")
        context = self._context(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        if self.is_mutual:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self) -> ssl.SSLContext:
        context = self._context(ssl.PROTOCOL_TLS_CLIENT)
        if self.authority is None:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return context

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        if self.authority is not None:
            with _file_errors(self.authority):
                context.load_verify_locations(self.authority)
        if self.certificate is not None:
            with _file_errors(f"{self.certificate} with {self.key or 'the key in it'}"):
                context.load_cert_chain(self.certificate, self.key, _no_password)
        return context


def _no_password() -> str:
    raise InvalidArgument("TLS: a key with a password cannot be used: nobody is there to type it")


@contextmanager
def _file_errors(place: str) -> Iterator[None]:
    """What is wrong with a PEM file, with its name."""
    try:
        yield
    except OSError as error:  # which SSLError is, too
        raise InvalidArgument(f"TLS: {place}: {_words(error)}") from error


class TlsSession:
    """One side of one connection. `buffer` holds what was just opened; connections of one thread may share it."""

    def __init__(self, context: ssl.SSLContext, host: str | None, buffer: memoryview) -> None:
        """`host`: whom the certificate of the other side must be for; None: this is the server's side."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        self._buffer = buffer
        self._first = b""
        self.is_ready = False
        """Both sides have agreed; frames may be sealed."""
        self.is_over = False
        """The other side said that it ends here."""

    @property
    def held_bytes(self) -> int:
        """What came and does not make a whole record yet."""
        return self._incoming.pending

    def begin(self) -> bytes:
        """The first bytes to be sent, if this side begins."""
        self._shake()
        return self.unsent()

    def open(self, data: memoryview) -> Iterator[memoryview]:
        """What the bytes say, in parts; each is good until the next is asked for. Afterwards `unsent` is to be sent.

        PermissionDenied if the sides do not agree, ProtocolError if bytes were changed on their way.
        """
        if len(self._first) < FIRST_BYTES:
            self._first += data[:FIRST_BYTES]
            if len(self._first) >= FIRST_BYTES and not looks_like_tls(self._first):
                self._outgoing.write(REFUSAL)
                raise PermissionDenied("TLS is spoken here, and the other side does not speak it")
        self._incoming.write(data)
        try:
            if not self.is_ready and not self._shake():
                return
            while size := self._read():
                yield self._buffer[:size]
            self.is_over = True
        except ssl.SSLWantReadError:
            return
        except ssl.SSLZeroReturnError:
            self.is_over = True
        except ssl.SSLError as error:
            raise _meaning(error) from error

    def seal(self, parts: Sequence[bytes | memoryview], size_bytes: int) -> Iterator[bytes]:
        """What is to be sent for the bytes of the parts, so many of them at once."""
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), size_bytes):
                self._object.write(view[at : at + size_bytes])
                yield self._outgoing.read()

    def unsent(self) -> bytes:
        return self._outgoing.read()

    def end(self) -> bytes:
        """The last bytes to be sent: they say that nothing is missing."""
        with suppress(ssl.SSLError):  # the other side has not said so yet, and need not
            self._object.unwrap()
        return self.unsent()

    def _read(self) -> int:
        """Open what came into the buffer; return how many bytes: 0 if the other side has said that it ends."""
        size: Any = self._object.read(len(self._buffer), self._buffer)  # typed as the bytes that it returns without one
        return int(size)

    def _shake(self) -> bool:
        """Go on with the handshake; whether it is done."""
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.is_ready = True
        return True


def looks_like_tls(first: bytes) -> bool:
    """Whether a connection that begins so speaks TLS: the first record is the hello of either side, or an alert.

    A frame that begins so would have a header of more than 255 bytes: a method whose name alone has more than 200.
    """
    if len(first) < FIRST_BYTES or first[1] != _MAJOR or first[2] > _MINOR_MAX:
        return False
    return first[0] in (_ALERT, _HANDSHAKE) and first[5] in (1, 2)


def _meaning(error: ssl.SSLError) -> StelaeError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return PermissionDenied(f"TLS: the other side's certificate is not trusted: {error.verify_message}")
    reason = error.reason or ""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return PermissionDenied("TLS: the other side shows no certificate, and one is needed here")
    if reason == "TLSV1_ALERT_PROTOCOL_VERSION":
        return PermissionDenied(
            "TLS: the other side does not speak it, or no version that is spoken here: start it with a certificate, or "
            "leave TLS out"
        )
    if "ALERT" in reason:
        return PermissionDenied(f"TLS: the other side refuses this one: {_words(error)}")
    return ProtocolError(f"TLS: {_words(error)}")


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    return error.strerror or str(error)
