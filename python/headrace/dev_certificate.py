"""A development certificate: a small authority of one's own, and a leaf for this machine.

In: a folder. Out: PEM texts; made when they are missing or about to expire. Only who trusts `ca.pem` trusts
the server: `headrace chat` does by itself, browsers and other programs must be told.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cryptography.x509 import GeneralName

LIFETIME = dt.timedelta(days=90)
RENEW_BEFORE = dt.timedelta(days=7)


class Certificate(NamedTuple):
    chain_pem: str
    key_pem: str
    ca_pem: str


def state_folder() -> Path:
    """Where headrace keeps what it made: `$XDG_STATE_HOME/headrace`."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "headrace"


def ca_file() -> Path:
    return state_folder() / "ca.pem"


def ensure(folder: Path | None = None) -> tuple[Certificate, bool]:
    """The certificate in `folder`, and whether it was just made."""
    folder = folder or state_folder()
    paths = [folder / name for name in ("cert.pem", "key.pem", "ca.pem")]
    if all(path.exists() for path in paths) and _is_fresh(paths[0]):
        return Certificate(*(path.read_text() for path in paths)), False
    folder.mkdir(parents=True, exist_ok=True)
    made = make([*_names(), "localhost", "127.0.0.1", "::1"])
    for path, text in zip(paths, made, strict=True):
        path.touch(mode=0o600 if path.name == "key.pem" else 0o644)
        path.write_text(text)
    return made, True


def make(names: list[str], lifetime: dt.timedelta = LIFETIME) -> Certificate:
    """A new authority and a leaf for `names` (host names and IP addresses), ECDSA P-256."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = dt.datetime.now(dt.UTC)

    def build(
        common_name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name | None
    ) -> x509.CertificateBuilder:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer or subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + lifetime)
        )

    usage = {
        "digital_signature": False,
        "content_commitment": False,
        "key_encipherment": False,
        "data_encipherment": False,
        "key_agreement": False,
        "key_cert_sign": False,
        "crl_sign": False,
        "encipher_only": False,
        "decipher_only": False,
    }
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca = (
        build("headrace development CA", ca_key, None)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    alternatives = [_alternative(name) for name in dict.fromkeys(names)]
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = (
        build("headrace development server", key, ca.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**{**usage, "digital_signature": True}), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False
        )
        .sign(ca_key, hashes.SHA256())
    )
    key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    ca_pem = ca.public_bytes(Encoding.PEM).decode()
    return Certificate(leaf.public_bytes(Encoding.PEM).decode(), key_pem, ca_pem)


def _alternative(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names() -> list[str]:
    name = socket.gethostname()
    return [name] if name and name.isascii() else []


def _is_fresh(path: Path) -> bool:
    from cryptography import x509

    try:
        expires = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
    except ValueError:
        return False
    return expires - dt.datetime.now(dt.UTC) > RENEW_BEFORE
