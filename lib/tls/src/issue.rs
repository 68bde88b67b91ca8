//! Makes certificate authorities and certificates.

use std::{
    fs, io,
    io::Write as _,
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, ExtendedKeyUsagePurpose, GeneralSubtree,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, NameConstraints, PublicKeyData as _, SanType, SerialNumber,
};

use crate::pem::File;

/// Clocks of agents differ: a new certificate is valid from this long ago.
const SKEW: Duration = Duration::from_secs(5 * 60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate and its private key, as PEM.
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The private key, SEC1.
    pub key: String,
}

/// Why none can be made.
#[derive(Debug, thiserror::Error)]
pub enum IssueError {
    /// A name cannot stand in a certificate.
    #[error("{0:?} cannot stand in a certificate: DNS names are ASCII letters, digits, dots and hyphens")]
    Name(String),
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] crate::Error),
    /// The key is not that of the authority.
    #[error("{0}")]
    Key(String),
    /// The time cannot be written.
    #[error("{0} days are too many for a certificate")]
    Days(u32),
    /// The library failed.
    #[error("the certificate cannot be made: {0}")]
    Made(#[from] rcgen::Error),
    /// There is no randomness.
    #[error("this system gives no random numbers")]
    Random,
}

/// An authority to be made.
#[derive(Clone, Debug, Default)]
pub struct Authority {
    /// Common name; empty = `Drover Agent CA` and the serial number.
    pub common_name: String,
    /// Days that it is valid.
    pub days: u32,
    /// Domains for which it may sign; empty = all.
    pub permitted_domains: Vec<String>,
    /// Further parts of the subject.
    pub subject: Subject,
}

/// Parts of a subject; empty = left out.
#[derive(Clone, Debug, Default)]
pub struct Subject {
    /// Country, two letters.
    pub country: String,
    /// Postal code.
    pub postal_code: String,
    /// Province or state.
    pub province: String,
    /// Locality.
    pub locality: String,
    /// Street address.
    pub street_address: String,
    /// Organization.
    pub organization: String,
    /// Organizational unit.
    pub organizational_unit: String,
}

impl Subject {
    fn fill(&self, name: &mut DistinguishedName) -> Result<(), IssueError> {
        // X.520 attributes 9 (street address) and 17 (postal code).
        for (kind, value) in [
            (DnType::CustomDnType(vec![2, 5, 4, 17]), &self.postal_code),
            (DnType::StateOrProvinceName, &self.province),
            (DnType::LocalityName, &self.locality),
            (DnType::CustomDnType(vec![2, 5, 4, 9]), &self.street_address),
            (DnType::OrganizationName, &self.organization),
            (DnType::OrganizationalUnitName, &self.organizational_unit),
        ] {
            if !value.is_empty() {
                name.push(kind, value.as_str());
            }
        }
        if !self.country.is_empty() {
            let printable = self.country.as_str().try_into().map_err(|_| IssueError::Name(self.country.clone()))?;
            name.push(DnType::CountryName, DnValue::PrintableString(printable));
        }
        Ok(())
    }
}

/// A certificate to be made.
#[derive(Clone, Debug, Default)]
pub struct Leaf {
    /// Common name, also the first DNS name.
    pub name: String,
    /// Days that it is valid.
    pub days: u32,
    /// Further DNS names.
    pub dns_names: Vec<String>,
    /// IP addresses.
    pub ip_addresses: Vec<IpAddr>,
}

/// A positive random number of 16 bytes.
fn serial() -> Result<[u8; 16], IssueError> {
    let mut bytes = [0; 16];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    provider.secure_random.fill(&mut bytes).map_err(|_| IssueError::Random)?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(bytes)
}

fn valid(params: &mut CertificateParams, now: SystemTime, days: u32) -> Result<(), IssueError> {
    // GeneralizedTime ends with the year 9999.
    const MOST: u32 = 7900 * 365;
    if days > MOST {
        return Err(IssueError::Days(days));
    }
    params.not_before = (now - SKEW).into();
    params.not_after = (now + DAY * days).into();
    Ok(())
}

/// Makes an authority that signs itself.
///
/// # Errors
/// See [`IssueError`].
pub fn authority(wanted: &Authority, now: SystemTime) -> Result<Pair, IssueError> {
    let (key, serial) = (KeyPair::generate()?, serial()?);
    let mut params = CertificateParams::default();
    valid(&mut params, now, wanted.days)?;
    let mut name = DistinguishedName::new();
    wanted.subject.fill(&mut name)?;
    if wanted.common_name.is_empty() {
        name.push(DnType::CommonName, format!("Drover Agent CA {}", u128::from_be_bytes(serial)));
    } else {
        name.push(DnType::CommonName, wanted.common_name.as_str());
    }
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    if !wanted.permitted_domains.is_empty() {
        for domain in &wanted.permitted_domains {
            dns(domain)?;
        }
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: wanted.permitted_domains.iter().cloned().map(GeneralSubtree::DnsName).collect(),
            excluded_subtrees: Vec::new(),
        });
    }
    let certificate = params.self_signed(&key)?.pem();
    Ok(Pair { certificate, key: sec1(&key)? })
}

/// Makes a certificate that the authority in the two files signs, for servers and clients of TLS.
///
/// # Errors
/// See [`IssueError`].
pub fn leaf(wanted: &Leaf, authority: &Path, key: &Path, now: SystemTime) -> Result<Pair, IssueError> {
    let (authority, signer) = (File { setting: "-ca", path: authority }, File { setting: "-key", path: key });
    let certificates = authority.certificates()?;
    let signing = KeyPair::try_from(&signer.key()?)
        .map_err(|e| IssueError::Key(signer.wrong(format!("cannot sign: {e}")).to_string()))?;
    let facts = crate::Certificate::parse(&certificates[0]).map_err(|why| authority.wrong(why))?;
    if !facts.authority {
        return Err(authority.wrong("is not the certificate of an authority").into());
    }
    if !is_key_of(&certificates[0], &signing) {
        return Err(signer.wrong(format!("is not the key of -ca {}", authority.path.display())).into());
    }
    let issuer = Issuer::from_ca_cert_der(&certificates[0], signing)?;
    let mut params = CertificateParams::default();
    valid(&mut params, now, wanted.days)?;
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, wanted.name.as_str());
    params.distinguished_name = name;
    params.serial_number = Some(SerialNumber::from_slice(&serial()?));
    let mut names = vec![&wanted.name];
    for name in &wanted.dns_names {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let addresses = wanted.ip_addresses.iter().copied().map(SanType::IpAddress).map(Ok);
    params.subject_alt_names =
        names.into_iter().map(|name| dns(name)).chain(addresses).collect::<Result<_, IssueError>>()?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let own = KeyPair::generate()?;
    let certificate = params.signed_by(&own, &issuer)?.pem();
    Ok(Pair { certificate, key: sec1(&own)? })
}

fn dns(name: &str) -> Result<SanType, IssueError> {
    let fit = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.*_".contains(&b));
    let wrong = || IssueError::Name(name.to_owned());
    if !fit {
        return Err(wrong());
    }
    Ok(SanType::DnsName(name.try_into().map_err(|_| wrong())?))
}

fn is_key_of(certificate: &[u8], key: &KeyPair) -> bool {
    use x509_parser::prelude::FromDer as _;
    x509_parser::certificate::X509Certificate::from_der(certificate)
        .is_ok_and(|(_, x509)| x509.public_key().raw == key.subject_public_key_info())
}

/// The P-256 key as `EC PRIVATE KEY` (RFC 5915), the form that Nomad's commands read. PKCS #8 holds it without its
/// curve; here the curve is added.
fn sec1(key: &KeyPair) -> Result<String, IssueError> {
    let pkcs8 = key.serialize_der();
    let wrong = || IssueError::Key("the new key has a form that is not known".to_owned());
    // SEQUENCE { version 1, OCTET STRING of 32 bytes, .. }
    const BEGIN: &[u8] = &[0x02, 0x01, 0x01, 0x04, 0x20];
    let at = pkcs8.windows(BEGIN.len()).position(|window| window == BEGIN).ok_or_else(wrong)? + BEGIN.len();
    let secret = pkcs8.get(at..at + 32).ok_or_else(wrong)?;
    let public = key.public_key_raw();
    if public.len() != 65 {
        return Err(wrong());
    }
    const CURVE: &[u8] = &[0xa0, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
    let mut der = vec![0x30, 0x77];
    der.extend_from_slice(BEGIN);
    der.extend_from_slice(secret);
    der.extend_from_slice(CURVE);
    der.extend_from_slice(&[0xa1, 0x44, 0x03, 0x42, 0x00]);
    der.extend_from_slice(public);
    Ok(armoured("EC PRIVATE KEY", &der))
}

fn armoured(label: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Writes a file that does not exist yet, readable by its owner alone when `secret`.
///
/// # Errors
/// When it exists or cannot be written.
pub fn write_new(path: &Path, text: &str, secret: bool) -> io::Result<()> {
    let mode = if secret { 0o600 } else { 0o644 };
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
