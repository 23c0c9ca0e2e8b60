"""Certificates for tests: an authority, and what it signs. They are good for a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from stelae.adapters.sockets.tls import TlsFiles


class Authority:
    """Keeps its files in a directory of its own."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        made = self._builder(self._name, self._key.public_key()).add_extension(x509.BasicConstraints(True, 0), True)
        self.path = _write(directory / f"{name}.pem", _pem(made.sign(self._key, hashes.SHA256())))

    def files(self, name: str, *hosts: str, is_mutual: bool = False) -> TlsFiles:
        """A certificate for these hosts (addresses or names), with its key and this authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(_name(name), key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), False)
        certificate = _write(self._directory / f"{name}.pem", _pem(builder.sign(self._key, hashes.SHA256())))
        plain = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return TlsFiles(self.path, certificate, _write(self._directory / f"{name}.key", plain), is_mutual)

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return x509.CertificateBuilder(
            self._name, subject, key, x509.random_serial_number(), now - timedelta(days=1), now + timedelta(days=1)
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)
