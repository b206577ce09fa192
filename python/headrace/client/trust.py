"""Which servers a client trusts, and the certificate that it shows of itself.

In: files, or what httpx takes as `verify` and `cert`. Out: a `Trust` that the engine can follow, or an error
that says which part of the input it cannot follow. An `ssl.SSLContext` belongs to OpenSSL, and the engine's
TLS is rustls, so only what can be read out of a context again can be honoured.
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
    """Which servers a client trusts. `ca_file`: a PEM file of certificates to trust beside the system's.
    `ca_pem`: the text of certificates to trust instead of the system's. `anybody`: no server is checked, for
    experiments. `identity`: the PEM files of the client's own certificate chain and key."""

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
        """The PEM texts of the client's own certificate chain and key. Raises `ConfigError`."""
        if not self.identity:
            return None
        certificate, key = self.identity
        return _text(certificate, "the client's certificate file"), _text(key, "the client's key file")

    def files(self) -> dict[str, object]:
        """The files that this was read from, by the names with which the engine's errors begin."""
        certificate, key = self.identity or (None, None)
        return {"ca_file": self.ca_file, "identity.certificate": certificate, "identity.key": key}


Verify = ssl.SSLContext | str | os.PathLike[str] | bool
Cert = str | tuple[str, ...] | None


def of_httpx(verify: Verify, cert: Cert) -> Trust:
    """Reads the arguments that httpx and httpx2 have.

    `verify`: `True`, `False` (which warns), the path of a CA file, or an `ssl.SSLContext` that does not ask
    for what only OpenSSL can do. `cert`: one PEM file with certificate and key, or one file for each. Raises
    `ConfigError`.
    """
    identity = None
    if cert is not None:
        files = (cert, cert) if isinstance(cert, str) else cert
        if len(files) != 2:
            expected = "expected a file, or (certificate file, key file)"
            raise ConfigError(detail=f"cert: {expected}; a key that has a password cannot be used")
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
        raise ConfigError(detail=f"verify: expected one PEM file, and {file} is a folder")
    return Trust(ca_pem=_text(file, "verify"), identity=identity)


def tcp_verify(verify: Verify, cert: Cert) -> ssl.SSLContext | bool:
    """What the family's own transport over TCP takes as `verify`, so that it trusts the same servers."""
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
                detail=f"verify: a context {what} cannot be honoured over HTTP/3; name a CA file instead"
            )
    roots = context.get_ca_certs(binary_form=True)
    if not roots or context.cert_store_stats()["x509"] != len(roots):
        # It trusts a folder that OpenSSL reads when it needs it, or certificates that are not an authority's:
        # rustls would trust other servers.
        expected = "name a CA file instead"
        raise ConfigError(detail=f"verify: what this context trusts cannot be read out of it; {expected}")
    pem = "".join(ssl.DER_cert_to_PEM_cert(root) for root in roots)
    return Trust(ca_pem=pem, identity=identity)


def _text(file: Path | str, what: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not PEM"
        raise ConfigError(detail=f"cannot read {what} {file}: {why}") from None
