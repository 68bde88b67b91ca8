//! What an agent is told of TLS.

use std::{fmt, path::PathBuf};

use rustls::{SupportedCipherSuite, SupportedProtocolVersion, crypto::aws_lc_rs::cipher_suite as suite, version};

/// TLS of an agent. Files that are not named are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// The HTTP API is served over TLS alone.
    pub http: bool,
    /// The RPC of nodes is served and dialled over TLS.
    pub rpc: bool,
    /// Authorities of the agents' certificates.
    pub ca_file: PathBuf,
    /// Certificate of this agent, with those between it and the authority.
    pub cert_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Peers must have the name of their role; otherwise any certificate of the authority will do.
    pub verify_names: bool,
    /// HTTP clients must show a certificate of the authority.
    pub verify_https_client: bool,
    /// Servers take plain connections of nodes, too.
    pub rpc_upgrade_mode: bool,
    /// Oldest version that is spoken.
    pub min_version: Version,
    /// Cipher suites of TLS 1.2; empty = all that are supported.
    pub cipher_suites: Vec<CipherSuite>,
    /// Region in the names of roles.
    pub region: String,
    /// Roles that this agent has.
    pub roles: Vec<Role>,
}

/// What an agent is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A server.
    Server,
    /// A node.
    Client,
}

impl Role {
    /// The name of the role in certificates.
    #[must_use]
    pub fn name(self, region: &str) -> String {
        match self {
            Self::Server => format!("server.{region}.nomad"),
            Self::Client => format!("client.{region}.nomad"),
        }
    }
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    #[default]
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl Version {
    /// Reads `tls12` or `tls13`; empty is `tls12`.
    ///
    /// # Errors
    /// What to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "" | "tls12" => Ok(Self::Tls12),
            "tls13" => Ok(Self::Tls13),
            "tls10" | "tls11" => {
                Err(format!("{text} is refused: TLS 1.0 and 1.1 are broken (RFC 8996); write tls12 or tls13"))
            }
            other => Err(format!("must be tls12 or tls13, it is {other:?}")),
        }
    }

    pub(crate) fn versions(self) -> &'static [&'static SupportedProtocolVersion] {
        match self {
            Self::Tls12 => BOTH,
            Self::Tls13 => &BOTH[..1],
        }
    }
}

/// The newest first.
static BOTH: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// A cipher suite of TLS 1.2.
#[derive(Clone, Copy, PartialEq)]
pub struct CipherSuite(pub(crate) SupportedCipherSuite);

/// Names as agents' configurations have them.
const SUITES: &[(&str, SupportedCipherSuite)] = &[
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

impl CipherSuite {
    /// Reads a list with commas between the names.
    ///
    /// # Errors
    /// Which name is not supported, and which are.
    pub fn parse(text: &str) -> Result<Vec<Self>, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        names
            .map(|name| {
                SUITES.iter().find(|(known, _)| *known == name).map(|(_, suite)| Self(*suite)).ok_or_else(|| {
                    let known: Vec<&str> = SUITES.iter().map(|(known, _)| *known).collect();
                    format!(
                        "{name:?} is refused: the supported suites of TLS 1.2 are {}; those of TLS 1.3 are always on",
                        known.join(", ")
                    )
                })
            })
            .collect()
    }
}

impl fmt::Debug for CipherSuite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.suite(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_suites_are_read_or_refused_by_name() {
        assert_eq!((Version::parse(""), Version::parse("tls13")), (Ok(Version::Tls12), Ok(Version::Tls13)));
        assert!(Version::parse("tls11").is_err_and(|why| why.contains("RFC 8996")));
        assert!(Version::parse("ssl").is_err_and(|why| why.contains("\"ssl\"")));
        let two = CipherSuite::parse("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305");
        assert_eq!(two.map(|suites| suites.len()), Ok(2));
        let unknown = CipherSuite::parse("TLS_RSA_WITH_AES_128_CBC_SHA").expect_err("not supported");
        assert!(unknown.contains("TLS_RSA_WITH_AES_128_CBC_SHA") && unknown.contains("AES_256_GCM"), "{unknown}");
    }
}
