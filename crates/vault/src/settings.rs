//! How Vault is reached.

use tls::{ClientFiles, Dialer, ServiceSettings};

/// How Vault is reached, and how tasks log in there: the `vault` block of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `http://` or `https://`, host and port, and a path below which the API is, if any.
    pub address: String,
    /// Namespace of tasks that name none; empty = the root.
    pub namespace: String,
    /// Role of tasks that name none; empty = the JWT method's own default.
    pub role: String,
    /// Where the JWT method is mounted, below `auth/`.
    pub jwt_path: String,
    /// Files of TLS.
    pub tls: ClientFiles,
}

impl Default for Settings {
    /// As Nomad documents them.
    fn default() -> Self {
        Self {
            address: "https://vault.service.consul:8200".to_owned(),
            namespace: String::new(),
            role: String::new(),
            jwt_path: "jwt-nomad".to_owned(),
            tls: ClientFiles::default(),
        }
    }
}

/// Settings that cannot be used. The text names the setting.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusable(pub String);

/// An address, taken apart.
#[derive(Clone, Debug)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as they were written.
    pub(crate) authority: String,
    /// What is before `/v1`, without a slash at its end.
    pub(crate) prefix: String,
    /// None = plain HTTP.
    pub(crate) dialer: Option<Dialer>,
}

impl Address {
    /// Reads the files of TLS. Blocking.
    pub(crate) fn of(settings: &Settings) -> Result<Self, Unusable> {
        let text = &settings.address;
        let wrong = |why: &str| Unusable(format!("vault.address {text:?} {why}; write https://HOST:PORT"));
        let uri: http::Uri = text.parse().map_err(|_| wrong("is no URL"))?;
        let secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(wrong("is neither http:// nor https://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("names no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("holds a user name"));
        }
        if uri.query().is_some() {
            return Err(wrong("holds a query"));
        }
        const NAMES: ServiceSettings =
            ServiceSettings { ca: "vault.ca_file", cert: "vault.cert_file", key: "vault.key_file" };
        let dialer = secure.then(|| Dialer::of_files(&settings.tls, NAMES, "vault.ca_path"));
        Ok(Self {
            host: authority.host().trim_matches(['[', ']']).to_owned(),
            port: authority.port_u16().unwrap_or(if secure { 443 } else { 80 }),
            authority: authority.to_string(),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            dialer: dialer.transpose().map_err(|e| Unusable(e.to_string()))?,
        })
    }
}
