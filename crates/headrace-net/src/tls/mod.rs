//! TLS for both listeners and for upstreams.
//!
//! In: PEM texts. Out: rustls configurations, or an error that begins with the setting whose text is wrong, and says
//! why.

pub mod development;
pub mod key_share;
pub mod tickets;

use std::sync::Arc;

use headrace_core::{Error, Kind};
use quinn_proto::crypto::rustls::QuicServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use crate::tls::tickets::Tickets;

/// The configurations of the QUIC and the TCP listener.
#[derive(Clone)]
pub struct ServerTls {
    pub quic: Arc<QuicServerConfig>,
    pub tcp: Arc<ServerConfig>,
}

/// The configurations of a server. `tickets`: those of the QUIC listener, for early data; without them every handshake
/// is a full one.
///
/// # Errors
/// [`Kind::Config`] when either text holds nothing usable, or the two do not belong together.
pub fn server(
    certificate_pem: &str,
    key_pem: &str,
    tickets: Option<Arc<Tickets>>,
) -> Result<ServerTls, Error> {
    let chain = certificates(certificate_pem, "tls.certificate")?;
    let key = private_key(key_pem, "tls.key")?;
    let build = |alpn: &[&[u8]], versions: &[&'static rustls::SupportedProtocolVersion]| {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(versions)
            .and_then(|builder| {
                builder.with_no_client_auth().with_single_cert(chain.clone(), key.clone_key())
            })
            .map_err(|error| match error {
                rustls::Error::InconsistentKeys(_) => {
                    Error::new(Kind::Config, "tls.key: does not belong to the certificate of tls.certificate")
                }
                error => Error::new(Kind::Config, format!("tls.certificate: cannot be used: {error}")),
            })?;
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok::<_, Error>(config)
    };
    let mut quic = build(&[b"h3"], &[&rustls::version::TLS13])?;
    match tickets {
        Some(tickets) => {
            quic.session_storage = tickets;
            // The only value but 0 that QUIC allows (RFC 9001 §4.6.1).
            quic.max_early_data_size = u32::MAX;
        }
        None => quic.send_tls13_tickets = 0,
    }
    let quic = QuicServerConfig::try_from(quic)
        .map_err(|error| Error::new(Kind::Config, format!("no TLS 1.3 cipher suite for QUIC: {error}")))?;
    let tcp = build(&[b"h2", b"http/1.1"], rustls::ALL_VERSIONS)?;
    Ok(ServerTls { quic: Arc::new(quic), tcp: Arc::new(tcp) })
}

/// What a client shows of itself: its certificate chain and key, in PEM.
pub struct Identity {
    pub certificate_pem: String,
    pub key_pem: String,
}

/// Whom a client trusts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// The system's certificates, and those in this PEM text (which may be empty).
    System { ca_pem: String },
    /// Only those in this PEM text.
    Only { ca_pem: String },
    /// Anybody; for experiments.
    Anybody,
}

/// A TLS client's configuration that offers `alpn`.
///
/// # Errors
/// [`Kind::Config`] when a PEM text is wrong, or there is nobody to trust.
pub fn client(trust: &Trust, identity: Option<&Identity>, alpn: &[&[u8]]) -> Result<ClientConfig, Error> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Kind::Config, error.to_string()))?;
    let builder = match trust {
        Trust::Anybody => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnybody(provider())))
        }
        Trust::System { ca_pem } | Trust::Only { ca_pem } => {
            let mut roots = RootCertStore::empty();
            if matches!(trust, Trust::System { .. }) {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
            if !ca_pem.is_empty() {
                for certificate in certificates(ca_pem, "ca_file")? {
                    roots.add(certificate).map_err(|error| {
                        Error::new(Kind::Config, format!("ca_file: cannot be used: {error}"))
                    })?;
                }
            }
            builder.with_root_certificates(roots)
        }
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificate_pem, key_pem }) => {
            let chain = certificates(certificate_pem, "identity.certificate")?;
            let key = private_key(key_pem, "identity.key")?;
            builder.with_client_auth_cert(chain, key).map_err(|error| {
                Error::new(Kind::Config, format!("identity.certificate: cannot be used: {error}"))
            })?
        }
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    Ok(config)
}

fn certificates(pem: &str, setting: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(Error::new(Kind::Config, format!("{setting}: holds no certificate; expected PEM"))),
        Err(error) => Err(Error::new(Kind::Config, format!("{setting}: is not PEM: {error}"))),
    }
}

fn private_key(pem: &str, setting: &str) -> Result<PrivateKeyDer<'static>, Error> {
    let expected = "expected one in PEM, without a password";
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| {
        Error::new(Kind::Config, format!("{setting}: holds no private key ({error}); {expected}"))
    })
}

/// ring's provider, but with AES-128 before AES-256: its keys are derived with SHA-256, for which processors have
/// instructions, and a QUIC handshake derives some thirty. RFC 9001 needs this suite anyway, for Initial packets.
fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    let preferred = rustls::CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != preferred);
    for group in &mut provider.kx_groups {
        if group.name() == rustls::NamedGroup::X25519 {
            *group = &key_share::Prepared;
        }
    }
    Arc::new(provider)
}

/// Accepts every certificate, but still checks the handshake's signatures.
#[derive(Debug)]
struct TrustAnybody(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
