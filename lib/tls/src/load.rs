//! From an agent's settings to the configurations of its listeners and diallers, all checked.

use std::{sync::Arc, time::SystemTime};

use rustls::{
    CertificateError, ClientConfig, RootCertStore, ServerConfig,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

use crate::{
    Certificate, Error, Expiry, Role, Settings,
    pem::File,
    verify::{Expected, Verifier},
};

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// Everything that an agent speaks TLS with.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    /// Those who may sign the certificates of others.
    pub(crate) roots: Arc<RootCertStore>,
    /// Of the HTTP API.
    pub(crate) http: Arc<ServerConfig>,
    /// Of the RPC; only with an authority.
    pub(crate) rpc: Option<Arc<ServerConfig>>,
    /// To the RPC of servers.
    pub(crate) to_rpc: Arc<ClientConfig>,
    /// To the HTTP API of servers.
    pub(crate) to_server: Arc<ClientConfig>,
    /// To the HTTP API of any agent.
    pub(crate) to_agent: Arc<ClientConfig>,
    pub(crate) expiries: Vec<Expiry>,
    /// What a person should look after.
    pub(crate) warnings: Vec<String>,
    /// The agent's certificate is not valid now.
    pub(crate) out_of_time: Option<String>,
}

/// The provider of all configurations, with the chosen suites of TLS 1.2.
pub(crate) fn provider(settings: &Settings) -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    if !settings.cipher_suites.is_empty() {
        let all = std::mem::take(&mut provider.cipher_suites);
        let chosen = settings.cipher_suites.iter().map(|suite| suite.0);
        provider.cipher_suites = all.into_iter().filter(|suite| suite.tls13().is_some()).chain(chosen).collect();
    }
    Arc::new(provider)
}

/// The files of an agent.
struct Files<'a> {
    ca: File<'a>,
    cert: File<'a>,
    key: File<'a>,
}

pub(crate) fn load(settings: &Settings, now: SystemTime) -> Result<Loaded, Error> {
    let missing = |setting, why| Err(Error::Missing { setting, why });
    let has = |path: &std::path::Path| !path.as_os_str().is_empty();
    if !has(&settings.cert_file) {
        return missing("tls.cert_file", "TLS needs the certificate of this agent; `drover tls cert create` makes one");
    }
    if !has(&settings.key_file) {
        return missing("tls.key_file", "TLS needs the private key of tls.cert_file");
    }
    if !has(&settings.ca_file) {
        return missing("tls.ca_file", "agents check each other's certificates against this authority");
    }
    let files = Files {
        ca: File { setting: "tls.ca_file", path: &settings.ca_file },
        cert: File { setting: "tls.cert_file", path: &settings.cert_file },
        key: File { setting: "tls.key_file", path: &settings.key_file },
    };
    let provider = provider(settings);
    let roots = Arc::new(files.ca.roots()?);
    let (authority, own) = (Certificate::first_of(files.ca)?, Certificate::first_of(files.cert)?);
    let (chain, key) = (files.cert.certificates()?, files.key.key()?);
    fits(settings, &provider, &files, &chain, &key)?;
    let out_of_time = signed(&files, &provider, &roots, &chain, &own, now)?;
    has_role(settings, files.cert, &own)?;
    let mut warnings = Vec::new();
    if files.key.readable_by_others() {
        warnings.push(format!(
            "tls.key_file {} can be read by other users: run chmod 600 on it",
            settings.key_file.display()
        ));
    }
    let made = Made { settings, provider, roots, chain, key };
    let (server, client) = (Role::Server.name(&settings.region), Role::Client.name(&settings.region));
    Ok(Loaded {
        settings: settings.clone(),
        roots: made.roots.clone(),
        http: made.server(settings.verify_https_client, HTTP1)?,
        rpc: if settings.rpc { Some(made.server(true, HTTP2)?) } else { None },
        to_rpc: made.client(&[&server], HTTP2)?,
        to_server: made.client(&[&server], HTTP1)?,
        to_agent: made.client(&[&client, &server], HTTP1)?,
        expiries: vec![
            Expiry { setting: "tls.cert_file", path: settings.cert_file.clone(), not_after: own.not_after },
            Expiry { setting: "tls.ca_file", path: settings.ca_file.clone(), not_after: authority.not_after },
        ],
        warnings,
        out_of_time,
    })
}

/// The key is that of the certificate, and the chosen suites can use it.
fn fits(
    settings: &Settings,
    provider: &CryptoProvider,
    files: &Files<'_>,
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<(), Error> {
    let signing = provider
        .key_provider
        .load_private_key(key.clone_key())
        .map_err(|e| files.key.wrong(format!("holds no private key that can be used: {e}")))?;
    let algorithm = signing.algorithm();
    rustls::sign::CertifiedKey::new(chain.to_vec(), signing).keys_match().map_err(|_| {
        files.key.wrong(format!(
            "is not the key of tls.cert_file {}; name the two files that were made together",
            files.cert.path.display()
        ))
    })?;
    let usable = |suite: &crate::CipherSuite| suite.0.usable_for_signature_algorithm(algorithm);
    if !settings.cipher_suites.is_empty() && !settings.cipher_suites.iter().any(usable) {
        return Err(Error::Settings(format!(
            "tls.tls_cipher_suites has no suite for the key of tls.cert_file {}, which is of the type {algorithm:?}; \
                add one of this type",
            files.cert.path.display()
        )));
    }
    Ok(())
}

/// The authority has signed the certificate. Answers why it is not valid at this time.
fn signed(
    files: &Files<'_>,
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: &[CertificateDer<'static>],
    own: &Certificate,
    now: SystemTime,
) -> Result<Option<String>, Error> {
    let out_of_time = if now < own.not_before {
        Some(format!("{} {} is not valid yet", files.cert.setting, files.cert.path.display()))
    } else if now > own.not_after {
        Some(format!("{} {} has expired", files.cert.setting, files.cert.path.display()))
    } else {
        None
    };
    // The signature is looked at as of a time at which the certificate was valid.
    let then = if out_of_time.is_some() { own.not_before } else { now };
    let since = then.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let verifier = clients(roots, provider)?;
    match verifier.verify_client_cert(&chain[0], &chain[1..], UnixTime::since_unix_epoch(since)) {
        Ok(_) => Ok(out_of_time),
        Err(rustls::Error::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => {
            Ok(Some(out_of_time.unwrap_or_else(|| {
                format!("{} {} is not valid at this time", files.ca.setting, files.ca.path.display())
            })))
        }
        Err(error) => Err(files.cert.wrong(format!(
            "is not signed by tls.ca_file {} ({error}); peers that have this authority would refuse it",
            files.ca.path.display()
        ))),
    }
}

/// The certificate names what the agent is: its peers look for it.
fn has_role(settings: &Settings, file: File<'_>, own: &Certificate) -> Result<(), Error> {
    if !settings.rpc || !settings.verify_names {
        return Ok(());
    }
    let (server, client) = (Role::Server.name(&settings.region), Role::Client.name(&settings.region));
    let fine = match settings.roles.as_slice() {
        [] => true,
        roles if roles.contains(&Role::Server) => own.names(&server),
        _ => own.names(&client) || own.names(&server),
    };
    if fine {
        return Ok(());
    }
    let (wanted, flag) = if settings.roles.contains(&Role::Server) { (server, "-server") } else { (client, "-client") };
    Err(file.wrong(format!(
        "names {}, and this agent needs {wanted}: make a certificate with `drover tls cert create {flag} -region {}`, \
            or set tls.verify_server_hostname = false on all agents",
        own.shown(),
        settings.region
    )))
}

pub(crate) fn clients(
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
        .build()
        .map_err(|e| Error::Settings(format!("tls.ca_file cannot be used for checking clients: {e}")))
}

/// What configurations are made of.
struct Made<'a> {
    settings: &'a Settings,
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Made<'_> {
    fn failed(error: impl std::fmt::Display) -> Error {
        Error::Settings(format!("TLS cannot be set up from tls.cert_file and tls.key_file: {error}"))
    }

    fn server(&self, mutual: bool, alpn: &[u8]) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(self.settings.min_version.versions())
            .map_err(Self::failed)?;
        let builder = if mutual {
            builder.with_client_cert_verifier(clients(&self.roots, &self.provider)?)
        } else {
            builder.with_no_client_auth()
        };
        let mut config = builder.with_single_cert(self.chain.clone(), self.key.clone_key()).map_err(Self::failed)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Arc::new(config))
    }

    fn client(&self, names: &[&str], alpn: &[u8]) -> Result<Arc<ClientConfig>, Error> {
        let names = if self.settings.verify_names { names } else { &[] };
        let region = &self.settings.region;
        let names = names.iter().map(|name| ServerName::try_from((*name).to_owned())).collect::<Result<Vec<_>, _>>();
        let names = names.map_err(|_| {
            Error::Settings(format!(
                "the region {region:?} cannot stand in a certificate: it must be a part of a DNS name"
            ))
        })?;
        let verifier =
            Verifier { expected: Expected::Member(self.roots.clone(), names), provider: self.provider.clone() };
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(self.settings.min_version.versions())
            .map_err(Self::failed)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())
            .map_err(Self::failed)?;
        config.alpn_protocols = vec![alpn.to_vec()];
        Ok(Arc::new(config))
    }
}
