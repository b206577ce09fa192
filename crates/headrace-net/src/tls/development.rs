//! Certificates for development.
//!
//! In: the names of a server, and from when to when they hold. Out: the PEM texts of a new authority, and of a leaf
//! that it has signed. The authority's own key is not kept: it signs once.

use std::time::Duration;

use headrace_core::{Error, Kind};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

/// PEM texts.
pub struct Certificate {
    pub chain_pem: String,
    pub key_pem: String,
    pub ca_pem: String,
}

/// A new authority and a leaf for `names` (host names and IP addresses), both ECDSA P-256. The moments are counted
/// from the Unix epoch.
///
/// # Errors
/// [`Kind::Config`] when a name cannot be in a certificate.
pub fn make(names: Vec<String>, not_before: Duration, not_after: Duration) -> Result<Certificate, Error> {
    sign(names, not_before, not_after)
        .map_err(|error| Error::new(Kind::Config, format!("no development certificate can be made: {error}")))
}

fn sign(names: Vec<String>, not_before: Duration, not_after: Duration) -> Result<Certificate, rcgen::Error> {
    let params = |names: Vec<String>, common_name: &str| {
        let mut params = CertificateParams::new(names)?;
        params.not_before = date_time_ymd(1970, 1, 1) + not_before;
        params.not_after = date_time_ymd(1970, 1, 1) + not_after;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        Ok::<_, rcgen::Error>(params)
    };
    let mut ca = params(Vec::new(), "headrace development CA")?;
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate()?)?;

    let mut leaf = params(names, "headrace development server")?;
    leaf.is_ca = IsCa::ExplicitNoCa;
    leaf.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    leaf.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let leaf = leaf.signed_by(&key, &ca)?;
    Ok(Certificate { chain_pem: leaf.pem(), key_pem: key.serialize_pem(), ca_pem: ca.pem() })
}
