"""The connection file: how agents and the CLI find the coordinator, and prove that they are allowed to talk to it.

It holds the fingerprint of the server's certificate, and tokens, so it has mode 0600 and belongs to one user. Arguments
and environment variables carry its path, never its content. The pool's own file has a token for each role; the file of
a pilot job that the pool submitted has only that job's token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pilot.core.errors import LostFileError, UserError
from pilot.host.files import open_regular, publish

_NAME_CHARACTERS = 16
"""80 bits: too many to find another secret with the same name."""


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    """Return the digest by which the coordinator finds a token: a look-up's time reveals nothing about the token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def life_name(secret: str) -> str:
    """Return the end of the name of the pilot with this ``secret``, which proves that the name is its own."""
    hashed = hashlib.sha256(b"pilot's life\0" + secret.encode(errors="surrogatepass")).digest()
    return base64.b32encode(hashed).decode().lower()[:_NAME_CHARACTERS]


def owns(secret: str, pilot: str) -> bool:
    """Return whether the name ``pilot`` is that of the pilot with this ``secret``."""
    return pilot.rpartition("-")[2] == life_name(secret)


class Connection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The coordinator's address, and tokens for it. A value of another form would hang or fail later."""

    #: the advertised address, ``tcp://host:port``
    endpoint: Annotated[
        str, Meta(pattern=r"^tcp://([A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.%a-z]{2,60}\]):(?!0)[0-9]{1,5}\Z")
    ]
    #: SHA-256 of the coordinator's certificate, in hex; no other certificate is accepted
    certificate: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    token: Annotated[str, Meta(pattern=r"^[!-~]{0,200}\Z")]  #: the user's, for requests by the CLI; "" in a job's file
    enrolment: Annotated[str, Meta(pattern=r"^[!-~]{0,200}\Z")]  #: the token with which a pilot joins
    #: the pool's name; restarts of its coordinator do not change it
    coordinator: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,100}\Z")]
    version: Annotated[str, Meta(pattern=r"^[!-~]{1,50}\Z")]  #: version of the package that wrote the file
    #: the batch job that ``enrolment`` is bound to; "": any
    job: Annotated[str, Meta(pattern=r"^[ -~]{0,200}\Z")] = ""
    #: the site's type of nodes for which that job was submitted; "": the site has none
    node_type: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{0,32}\Z")] = ""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of ``endpoint``."""
        host, _, port = self.endpoint.removeprefix("tcp://").rpartition(":")
        return host.strip("[]"), int(port)


MOST_BYTES = 65536


def write(path: Path, connection: Connection) -> None:
    """Publish the file with mode 0600."""
    publish(path, msgspec.json.format(msgspec.json.encode(connection)) + b"\n", mode=0o600)


def load(path: Path) -> Connection:
    """Read the file; :class:`LostFileError` if it is missing or malformed, :class:`UserError` if it cannot be read, or
    is another user's or readable by others.
    """
    try:
        with open_regular(path) as file:
            _check_private(path, os.fstat(file.fileno()))
            return _decode(path, file.read(MOST_BYTES))
    except FileNotFoundError:
        raise LostFileError(f"no connection file {path}; is the coordinator up? (pilot up)") from None
    except OSError as error:
        raise UserError(f"cannot read the connection file {path}: {error.strerror}") from None


def _check_private(path: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise UserError(f"connection file {path} belongs to user {status.st_uid}, not to you; use your own coordinator")
    if status.st_mode & 0o077:
        raise UserError(f"connection file {path} can be read by others, so its token is not secret; chmod 600 {path}")


def _decode(path: Path, data: bytes) -> Connection:
    try:
        connection = msgspec.json.decode(data, type=Connection)
        host, port = connection.address
        host.encode("idna")  # as the resolver will; names are checked there only
        if port > 65535:
            raise ValueError("its endpoint has no port")
        return connection
    except (ValueError, RecursionError) as error:
        raise LostFileError(f"connection file {path} is damaged: {error}; run pilot up again") from None


_KEY = "-----BEGIN PRIVATE KEY-----"
_BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
_NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280's "no well-defined expiration date": a node's clock may be wrong, and the pool ends long before."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """The coordinator's self-signed certificate and private key, in PEM. Its file must stay secret.

    There is no certificate authority and no host name to check: a peer accepts exactly the certificate whose
    fingerprint is in its connection file. In TLS 1.3 the server always proves that it holds the private key.
    """

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
        """Return the server's TLS settings: TLS 1.3 only, no session tickets because sessions are never resumed."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.num_tickets = 0
        with os.fdopen(os.memfd_create("certificate"), "wb") as file:  # ssl reads keys only from files
            file.write(self.pem)
            file.flush()
            context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
        return context


def fingerprint(der: bytes) -> str:
    """Return the SHA-256 of a certificate, in hex."""
    return hashlib.sha256(der).hexdigest()


def is_pinned(der: bytes | None, pin: str) -> bool:
    """Return whether ``pin`` is the fingerprint of a peer's certificate (DER)."""
    return der is not None and hmac.compare_digest(fingerprint(der), pin)


@cache
def client_context() -> ssl.SSLContext:
    """Return a peer's TLS settings. The peer checks the certificate with :func:`is_pinned` before it sends anything."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
