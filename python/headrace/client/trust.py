"""Whom a client believes, and what it shows of itself.

In: files, or what httpx takes as `verify` and `cert`. Out: a `Trust` that the engine can follow, or an error
that says which part of the input it cannot follow. An `ssl.SSLContext` belongs to OpenSSL, and the engine's
TLS is rustls: only what can be read out of a context again can be honoured.
"""

from __future__ import annotations

import os
import ssl
import warnings
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigError

_REVOCATION = ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_CRL_CHECK_CHAIN


@dataclass(frozen=True)
class Trust:
    """`ca_file`: PEM, trusted beside the system's certificates. `ca_pem`: instead of them. `anybody`: no
    check at all, for experiments. `identity`: the client's certificate chain and key, PEM files."""

    ca_file: Path | str | None = None
    ca_pem: str = ""
    anybody: bool = False
    identity: tuple[Path | str, Path | str] | None = None

    def read(self) -> tuple[str, str]:
        """Who is trusted, in the engine's words, and a PEM text. Raises `ConfigError`."""
        if self.anybody:
            return "anybody", ""
        if self.ca_pem:
            return "only", self.ca_pem
        return "system", _text(self.ca_file, "the CA file") if self.ca_file else ""

    def read_identity(self) -> tuple[str, str] | None:
        """Raises `ConfigError`."""
        if not self.identity:
            return None
        certificate, key = self.identity
        return _text(certificate, "the client's certificate file"), _text(key, "the client's key file")

    def files(self) -> dict[str, object]:
        """By the names that the engine's errors begin with."""
        certificate, key = self.identity or (None, None)
        return {"ca_file": self.ca_file, "identity.certificate": certificate, "identity.key": key}


Verify = ssl.SSLContext | str | os.PathLike[str] | bool
Cert = str | tuple[str, ...] | None


def of_httpx(verify: Verify, cert: Cert) -> Trust:
    """From the arguments that httpx and httpx2 have.

    `verify`: `True`, `False` (warns), the path of a CA file, or an `ssl.SSLContext` without what only OpenSSL
    can do. `cert`: one PEM file with certificate and key, or the two. Raises `ConfigError`.
    """
    identity = None
    if cert is not None:
        files = (cert, cert) if isinstance(cert, str) else cert
        if len(files) != 2:
            expected = (
                "expected a file, or (certificate file, key file); a key with a password cannot be used"
            )
            raise ConfigError(detail=f"cert: {expected}")
        identity = (Path(files[0]), Path(files[1]))
    if isinstance(verify, ssl.SSLContext):
        return _of_context(verify, identity)
    if verify is False:
        warnings.warn("verify=False: anybody can read and change what this client sends", stacklevel=4)
        return Trust(anybody=True, identity=identity)
    if verify is True:
        return Trust(identity=identity)
    file = Path(verify)
    if file.is_dir():
        raise ConfigError(detail=f"verify: {file} is a folder; expected one PEM file")
    return Trust(ca_pem=_text(file, "verify"), identity=identity)


def tcp_verify(verify: Verify, cert: Cert) -> ssl.SSLContext | bool:
    """The same for the family's own transport."""
    if isinstance(verify, ssl.SSLContext) or (cert is None and isinstance(verify, bool)):
        return verify
    context = ssl.create_default_context(cafile=None if isinstance(verify, bool) else os.fspath(verify))
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if cert is not None:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context


def _of_context(context: ssl.SSLContext, identity: tuple[Path, Path] | None) -> Trust:
    kind = type(context)
    if kind.__module__.partition(".")[0] == "truststore":
        return Trust(identity=identity)
    if context.verify_mode is ssl.CERT_NONE:
        return Trust(anybody=True, identity=identity)
    for is_so, what in (
        (kind is not ssl.SSLContext, f"of the class {kind.__qualname__}"),
        (not context.check_hostname, "that wants a certificate, whatever its name (check_hostname=False),"),
        (context.verify_flags & _REVOCATION, "that checks revocation lists"),
    ):
        if is_so:
            raise ConfigError(
                detail=f"verify: a context {what} cannot be honoured over HTTP/3; give a CA file"
            )
    roots = context.get_ca_certs(binary_form=True)
    if not roots or context.cert_store_stats()["x509"] != len(roots):
        # A folder that OpenSSL reads when it needs it, or certificates that are no CA's: rustls would trust
        # others.
        raise ConfigError(detail="verify: what this context trusts cannot be read out of it; give a CA file")
    pem = "".join(ssl.DER_cert_to_PEM_cert(root) for root in roots)
    return Trust(ca_pem=pem, identity=identity)


def _text(file: Path | str, what: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not PEM"
        raise ConfigError(detail=f"cannot read {what} {file}: {why}") from None
