"""Secrets and their digests: tokens, which say what a peer may do, and the secret behind a pilot's name."""

from __future__ import annotations

import base64
import hashlib
import secrets

_NAME_CHARACTERS = 16
"""80 bits: too many to find another secret with the same name."""


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


def digest(token: str) -> bytes:
    """What the coordinator stores of a token and looks up, so that the time of a look-up reveals nothing about the
    token."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def life_name(secret: str) -> str:
    """The end of the name of the pilot with this ``secret``, so that the pilot can prove that the name is its own, also
    after a restart."""
    hashed = hashlib.sha256(b"pilot's life\0" + secret.encode(errors="surrogatepass")).digest()
    return base64.b32encode(hashed).decode().lower()[:_NAME_CHARACTERS]


def owns(secret: str, pilot: str) -> bool:
    """Whether ``secret`` is the one behind the name ``pilot``."""
    return pilot.rpartition("-")[2] == life_name(secret)
