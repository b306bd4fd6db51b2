"""The coordinator's certificate: self-signed, made with the pool, and pinned by the connection file.

There is no certificate authority and no host name to check: a peer accepts exactly the certificate whose fingerprint is
in its connection file. In TLS 1.3 the server always proves that it holds the private key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from pilot.core.errors import LostFileError, UserError
from pilot.io.files import publish

_KEY = "-----BEGIN PRIVATE KEY-----"
_BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
_NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280's "no well-defined expiration date": a node's clock may be wrong, and the pool ends long before."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its private key, in PEM. Its file must stay secret."""

    pem: bytes

    @classmethod
    def make(cls) -> Certificate:
        """Generate a P-256 key and a certificate signed with it."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "pilot coordinator")])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(_BEGAN).not_valid_after(_NEVER)
        signed = builder.sign(key, hashes.SHA256())
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return cls(signed.public_bytes(Encoding.PEM) + secret)

    @classmethod
    def load(cls, path: Path) -> Certificate:
        """Read it from a file; :class:`LostFileError` if that is missing or damaged, :class:`UserError` if it cannot be
        read.
        """
        try:
            made = cls(path.read_bytes())
            made.server_context()
        except (FileNotFoundError, ssl.SSLError, ValueError) as error:
            raise LostFileError(f"the coordinator's key {path} is missing or damaged: {error}") from None
        except OSError as error:
            raise UserError(f"cannot read the coordinator's key {path}: {error}") from None
        return made

    def save(self, path: Path) -> None:
        """Publish it, mode 0600."""
        publish(path, self.pem, mode=0o600)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate (DER), in hex, as in the connection file."""
        return fingerprint(ssl.PEM_cert_to_DER_cert(self.pem.decode().partition(_KEY)[0]))

    def server_context(self) -> ssl.SSLContext:
        """The server's TLS settings: TLS 1.3 only, no session tickets because sessions are never resumed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:  # ssl reads keys only from files
            file.write(self.pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


def fingerprint(der: bytes) -> str:
    """SHA-256 of a certificate, in hex."""
    return hashlib.sha256(der).hexdigest()


def is_pinned(der: bytes | None, pin: str) -> bool:
    """Whether ``pin`` is the fingerprint of a peer's certificate (DER)."""
    return der is not None and hmac.compare_digest(fingerprint(der), pin)


@cache
def client_context() -> ssl.SSLContext:
    """A peer's TLS settings. The peer checks the certificate with :func:`is_pinned` before it sends anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
