"""The development certificate: what is in it, and when it is made anew."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from headrace import dev_certificate
from headrace.errors import ConfigError

DAY = dt.timedelta(days=1)


def test_the_leaf_is_a_servers_and_signed_by_the_authority() -> None:
    made = dev_certificate.make(["box.local", "localhost", "127.0.0.1", "::1"])
    leaf, ca = (x509.load_pem_x509_certificate(pem.encode()) for pem in (made.chain_pem, made.ca_pem))
    leaf.verify_directly_issued_by(ca)
    ca.verify_directly_issued_by(ca)
    key = load_pem_private_key(made.key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP256R1)
    assert key.public_key() == leaf.public_key()

    def extension(of: x509.Certificate, kind: type[x509.ExtensionType]) -> object:
        return of.extensions.get_extension_for_class(kind).value  # type: ignore[type-var]

    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["box.local", "localhost"]
    addresses = [ipaddress.ip_address("127.0.0.1"), ipaddress.ip_address("::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    assert extension(ca, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    assert extension(leaf, x509.BasicConstraints) == x509.BasicConstraints(ca=False, path_length=None)
    assert ca.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    assert leaf.extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature
    assert extension(leaf, x509.ExtendedKeyUsage) == x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    now = dt.datetime.now(dt.UTC)
    for certificate in (leaf, ca):
        assert now - 2 * dt.timedelta(hours=1) < certificate.not_valid_before_utc < now
        assert abs(certificate.not_valid_after_utc - now - dev_certificate.LIFETIME) < dt.timedelta(minutes=1)


def test_two_certificates_share_nothing() -> None:
    first, second = (dev_certificate.make(["localhost"]) for _ in range(2))
    assert not {first.key_pem, first.chain_pem, first.ca_pem} & set(second)


@pytest.mark.parametrize("name", ["b\xfcro.local", "\u2603"])
def test_a_name_that_cannot_be_in_a_certificate_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no development certificate can be made"):
        dev_certificate.make([name])


def test_it_is_kept_until_it_is_about_to_expire(tmp_path: Path) -> None:
    made, is_new = dev_certificate.ensure(tmp_path)
    assert is_new
    assert dev_certificate.ensure(tmp_path) == (made, False)
    assert [oct((tmp_path / name).stat().st_mode)[-3:] for name in ("key.pem", "ca.pem")] == ["600", "644"]

    # In place of it one that holds for a shorter time.
    for lifetime, is_kept in (
        (dev_certificate.RENEW_BEFORE + DAY, True),
        (dev_certificate.RENEW_BEFORE - DAY, False),
    ):
        short = dev_certificate.make(["localhost"], lifetime)
        for name, text in zip(("cert.pem", "key.pem", "ca.pem"), short, strict=True):
            (tmp_path / name).write_text(text)
        found, is_new = dev_certificate.ensure(tmp_path)
        assert (found == short, is_new) == (is_kept, not is_kept)


@pytest.mark.parametrize(
    "text", ["", "no certificate", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_file_that_holds_no_certificate_is_replaced(text: str, tmp_path: Path) -> None:
    dev_certificate.ensure(tmp_path)
    (tmp_path / "ca.pem").write_text(text)
    made, is_new = dev_certificate.ensure(tmp_path)
    assert is_new
    assert (tmp_path / "ca.pem").read_text() == made.ca_pem
