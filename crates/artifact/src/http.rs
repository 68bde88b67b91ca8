//! Downloads by HTTP. Redirects are followed here, so that what the job sends to one host is never sent to another.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Read, Write},
    sync::Arc,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    error::FetchError,
    uri::{Uri, decode},
};

/// One download.
pub(crate) struct Request<'a> {
    pub(crate) url: &'a str,
    pub(crate) headers: &'a BTreeMap<String, String>,
    /// Certificates are not verified.
    pub(crate) insecure: bool,
    /// How many answers may send us elsewhere.
    pub(crate) redirects: u32,
    pub(crate) max_bytes: u64,
}

/// The redirects that browsers follow.
pub(crate) const REDIRECTS: u32 = 10;
const CONNECT: Duration = Duration::from_secs(30);

/// An address as errors show it: without user, password and query, where secrets are.
pub(crate) fn shown(url: &str) -> String {
    match Uri::parse(url) {
        Some(mut uri) => {
            uri.query.clear();
            uri.authority = uri.authority.rsplit_once('@').map_or(uri.authority.clone(), |(_, host)| host.to_owned());
            uri.to_string()
        }
        None => "the address".to_owned(),
    }
}

/// Writes the body to a file; answers its length.
pub(crate) fn download(request: &Request<'_>, into: &mut File) -> Result<u64, FetchError> {
    let agent = agent(request.insecure);
    let mut url = clean(request.url);
    let mut headers = request.headers.clone();
    let mut left = request.redirects;
    loop {
        let shown = shown(&url);
        let response = get(&agent, &url, &headers).map_err(|e| failed(&shown, &e))?;
        let status = response.status().as_u16();
        if response.status().is_redirection()
            && let Some(location) = response.headers().get("location").and_then(|l| l.to_str().ok())
            && request.redirects > 0
        {
            left = left.checked_sub(1).ok_or_else(|| FetchError::Untrusted {
                url: shown.clone(),
                why: format!("more than {} redirects", request.redirects),
            })?;
            let next = clean(&join(&url, location).ok_or_else(|| FetchError::Untrusted {
                url: shown.clone(),
                why: format!("it redirects to {location:?}, which is no http or https address"),
            })?);
            if origin(&next) != origin(&url) {
                headers.clear();
            }
            url = next;
            continue;
        }
        if !response.status().is_success() {
            return Err(FetchError::Status { url: shown, status });
        }
        return store(response, &shown, request.max_bytes, into);
    }
}

fn store(
    mut response: http::Response<ureq::Body>,
    shown: &str,
    max_bytes: u64,
    into: &mut File,
) -> Result<u64, FetchError> {
    let too_large = || FetchError::TooLarge { limit: max_bytes, option: "http_max_size" };
    let announced = response.body().content_length();
    if announced.is_some_and(|length| length > max_bytes) {
        return Err(too_large());
    }
    let mut body = response.body_mut().as_reader();
    let mut buffer = vec![0; 1 << 16];
    let mut length = 0_u64;
    loop {
        let n = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                return Err(FetchError::Network {
                    url: shown.to_owned(),
                    why: format!("it broke off after {length} bytes: {e}"),
                });
            }
        };
        length += n as u64;
        if length > max_bytes {
            return Err(too_large());
        }
        into.write_all(&buffer[..n]).map_err(FetchError::io("write the download"))?;
    }
    if announced.is_some_and(|announced| announced != length) {
        return Err(FetchError::Network {
            url: shown.to_owned(),
            why: format!("it broke off after {length} of {} bytes", announced.unwrap_or(0)),
        });
    }
    Ok(length)
}

fn agent(insecure: bool) -> ureq::Agent {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ureq::tls::TlsConfig::builder()
        .provider(ureq::tls::TlsProvider::Rustls)
        .root_certs(ureq::tls::RootCerts::PlatformVerifier)
        .disable_verification(insecure)
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = ureq::Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .timeout_connect(Some(CONNECT))
        .timeout_resolve(Some(CONNECT))
        .user_agent(concat!("drover/", env!("CARGO_PKG_VERSION")))
        .tls_config(tls)
        .build();
    config.new_agent()
}

fn get(
    agent: &ureq::Agent,
    url: &str,
    headers: &BTreeMap<String, String>,
) -> Result<http::Response<ureq::Body>, ureq::Error> {
    let Some(mut uri) = Uri::parse(url) else {
        return Err(ureq::Error::BadUri(url.to_owned()));
    };
    let user = uri.authority.rsplit_once('@').map(|(user, host)| (user.to_owned(), host.to_owned()));
    if let Some((_, host)) = &user {
        uri.authority.clone_from(host);
    }
    let mut request = agent.get(uri.to_string());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if let Some((user, _)) = user.filter(|_| !headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"))) {
        let (name, password) = user.split_once(':').unwrap_or((&user, ""));
        let pair = BASE64_STANDARD.encode(format!("{}:{}", decode(name), decode(password)));
        request = request.header("authorization", format!("Basic {pair}"));
    }
    request.call()
}

fn failed(shown: &str, error: &ureq::Error) -> FetchError {
    let (url, why) = (shown.to_owned(), error.to_string());
    match error {
        ureq::Error::Tls(_) | ureq::Error::Rustls(_) | ureq::Error::Http(_) | ureq::Error::BadUri(_) => {
            FetchError::Untrusted { url, why }
        }
        // A certificate that is not accepted comes wrapped.
        ureq::Error::Io(e) if e.get_ref().is_some_and(|inner| inner.downcast_ref::<rustls::Error>().is_some()) => {
            FetchError::Untrusted { url, why }
        }
        _ => FetchError::Network { url, why },
    }
}

fn origin(url: &str) -> Option<(String, String)> {
    let uri = Uri::parse(url)?;
    let host = uri.authority.rsplit_once('@').map_or(uri.authority.as_str(), |(_, host)| host).to_ascii_lowercase();
    Some((uri.scheme, host))
}

/// Characters that people write and addresses may not have are escaped.
fn clean(url: &str) -> String {
    let mut out = String::with_capacity(url.len());
    for byte in url.bytes() {
        if byte.is_ascii_graphic() && !matches!(byte, b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Where a redirect leads; `None` = not to HTTP.
fn join(base: &str, location: &str) -> Option<String> {
    let joined = if location.contains("://") {
        location.to_owned()
    } else {
        let mut uri = Uri::parse(base)?;
        if let Some(rest) = location.strip_prefix("//") {
            format!("{}://{rest}", uri.scheme)
        } else {
            uri.query.clear();
            let dir = if location.starts_with('/') { "" } else { uri.path.rsplit_once('/').map_or("", |(dir, _)| dir) };
            let between = if location.starts_with('/') { "" } else { "/" };
            format!("{}://{}{dir}{between}{location}", uri.scheme, uri.authority)
        }
    };
    Uri::parse(&joined).filter(|uri| matches!(uri.scheme.as_str(), "http" | "https") && !uri.host().is_empty())?;
    Some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_to_http_only() {
        for (location, expected) in [
            ("https://o/x", Some("https://o/x")),
            ("//o/x", Some("http://o/x")),
            ("/x?y", Some("http://h:1/x?y")),
            ("x", Some("http://h:1/a/x")),
            ("file:///etc/passwd", None),
            ("ftp://o/x", None),
        ] {
            assert_eq!(join("http://h:1/a/b?q=1", location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn errors_show_no_secrets() {
        assert_eq!(shown("https://user:secret@h:1/a/b?token=secret"), "https://h:1/a/b");
        assert_eq!(clean("http://h/a b/é"), "http://h/a%20b/%C3%A9");
        assert_ne!(origin("http://h/"), origin("https://h/"));
    }
}
