//! Facts of a certificate, for people and for decisions about roles.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use x509_parser::{certificate::X509Certificate, extensions::GeneralName, prelude::FromDer as _, x509::X509Name};

use crate::{Error, pem::File};

/// A certificate that is valid for less than this is worth a warning.
pub const WARN_BEFORE: Duration = Duration::from_secs(30 * 24 * 3600);

/// What stands in a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Serial number, decimal.
    pub serial: String,
    /// Common name of the subject; empty = none.
    pub common_name: String,
    /// Common name of the issuer; empty = none.
    pub issuer: String,
    /// From when it is valid.
    pub not_before: SystemTime,
    /// Until when it is valid.
    pub not_after: SystemTime,
    /// DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub ip_addresses: Vec<IpAddr>,
    /// It may sign others.
    pub authority: bool,
    /// Domains for which an authority may sign; empty = all.
    pub permitted_domains: Vec<String>,
}

/// Until when a file is valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// The setting that names the file.
    pub setting: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Until when.
    pub not_after: SystemTime,
}

impl Expiry {
    /// What a person should do about it at `now`; None = nothing yet.
    pub(crate) fn warning(&self, now: SystemTime) -> Option<String> {
        let (setting, path) = (self.setting, self.path.display());
        match self.not_after.duration_since(now) {
            Ok(left) if left < WARN_BEFORE => Some(format!(
                "{setting} {path} expires in {} days: replace the file and reload the agent (SIGHUP)",
                left.as_secs() / (24 * 3600)
            )),
            Ok(_) => None,
            Err(_) => Some(format!(
                "{setting} {path} has expired: peers refuse it; replace the file and reload the agent (SIGHUP)"
            )),
        }
    }
}

fn common_name(name: &X509Name<'_>) -> String {
    name.iter_common_name().next().and_then(|cn| cn.as_str().ok()).unwrap_or_default().to_owned()
}

fn time(seconds: i64) -> SystemTime {
    match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH + Duration::from_secs(after),
        Err(_) => UNIX_EPOCH - Duration::from_secs(seconds.unsigned_abs()),
    }
}

impl Certificate {
    /// Reads the first certificate of a PEM file.
    ///
    /// # Errors
    /// When the file cannot be read or holds no certificate.
    pub fn of_file(path: &Path) -> Result<Self, Error> {
        Self::first_of(File { setting: "certificate", path })
    }

    pub(crate) fn first_of(file: File<'_>) -> Result<Self, Error> {
        let all = file.certificates()?;
        Self::parse(&all[0]).map_err(|why| file.wrong(why))
    }

    /// Reads the certificate's DER.
    pub(crate) fn parse(der: &[u8]) -> Result<Self, String> {
        let (_, x509) = X509Certificate::from_der(der).map_err(|e| format!("is no X.509 certificate: {e}"))?;
        let (mut dns_names, mut ip_addresses) = (Vec::new(), Vec::new());
        let names = x509.subject_alternative_name().map_err(|e| format!("has unreadable names: {e}"))?;
        for name in names.into_iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(name) => dns_names.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => ip_addresses.extend(
                    <[u8; 4]>::try_from(*bytes)
                        .map(IpAddr::from)
                        .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from)),
                ),
                _ => {}
            }
        }
        let constraints = x509.name_constraints().map_err(|e| format!("has unreadable name constraints: {e}"))?;
        let permitted = constraints.and_then(|c| c.value.permitted_subtrees.as_ref()).into_iter().flatten();
        let permitted_domains = permitted
            .filter_map(|tree| match tree.base {
                GeneralName::DNSName(name) => Some(name.to_owned()),
                _ => None,
            })
            .collect();
        Ok(Self {
            serial: x509.tbs_certificate.serial.to_string(),
            common_name: common_name(x509.subject()),
            issuer: common_name(x509.issuer()),
            not_before: time(x509.validity().not_before.timestamp()),
            not_after: time(x509.validity().not_after.timestamp()),
            dns_names,
            ip_addresses,
            authority: x509.is_ca(),
            permitted_domains,
        })
    }

    /// Whether the name stands among the DNS names. The common name does not count.
    #[must_use]
    pub fn names(&self, name: &str) -> bool {
        self.dns_names.iter().any(|own| own.eq_ignore_ascii_case(name))
    }

    /// Its names, for a message.
    #[must_use]
    pub fn shown(&self) -> String {
        match (self.dns_names.as_slice(), self.common_name.as_str()) {
            ([], "") => "no name".to_owned(),
            ([], cn) => format!("no DNS name (its common name {cn} does not count)"),
            (names, _) => names.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_told_of_thirty_days_before_its_end() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let (day, second) = (Duration::from_secs(24 * 3600), Duration::from_secs(1));
        let told = |not_after| Expiry { setting: "tls.cert_file", path: "a.pem".into(), not_after }.warning(now);
        assert_eq!(told(now + 30 * day), None);
        for (not_after, what) in [
            (now + 30 * day - second, "tls.cert_file a.pem expires in 29 days: "),
            (now + day, "expires in 1 days: "),
            (now, "expires in 0 days: "),
            (now - second, "tls.cert_file a.pem has expired: peers refuse it; "),
        ] {
            let said = told(not_after).expect("a warning");
            assert!(said.contains(what) && said.ends_with("replace the file and reload the agent (SIGHUP)"), "{said}");
        }
    }
}
