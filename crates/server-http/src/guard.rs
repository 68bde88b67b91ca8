//! Who may speak: requests that a web page makes in a person's browser are not that person's.
//!
//! A page can send a simple request to any address (it needs no preflight), and through a name that it makes
//! resolve to the agent's address it can read the answers as well. Browsers say where a request comes from
//! (`Origin`, `Sec-Fetch-Site`) and which name it was sent to (`Host`); other programs send no origin, and reach an
//! agent by its address or its own name. So pages are told apart without asking anybody for more.

use std::collections::BTreeSet;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request,
    header::{ACCESS_CONTROL_ALLOW_ORIGIN, HOST, ORIGIN, UPGRADE},
};

/// Marks a request that came over a socket which no browser can reach: any host will do.
#[derive(Clone, Copy, Debug)]
pub struct NotFromBrowser;

/// Whom the HTTP API answers.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Names of this agent, in lower case. IP addresses and `localhost` need not be among them.
    names: BTreeSet<String>,
    /// Every subdomain of these, too.
    domains: Vec<String>,
    /// Any name.
    any: bool,
    /// Origins whose pages may change things: what the operator has named in `Access-Control-Allow-Origin`.
    origins: BTreeSet<String>,
}

/// What browsers say of where a request comes from.
pub(crate) const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

impl Guard {
    /// `own` are the names of the agent; `allowed` what an operator adds: a name, `*.domain`, or `*` for any. A
    /// single origin among `headers`, which are put on every answer, may speak as well.
    pub fn new<'a>(
        own: impl IntoIterator<Item = &'a str>,
        allowed: &[String],
        headers: &[(HeaderName, HeaderValue)],
    ) -> Self {
        let mut guard =
            Self { names: own.into_iter().map(|name| name_of(name).to_ascii_lowercase()).collect(), ..Self::default() };
        for name in allowed {
            match name.strip_prefix("*.") {
                _ if name == "*" => guard.any = true,
                Some(domain) => guard.domains.push(format!(".{}", domain.to_ascii_lowercase())),
                None => drop(guard.names.insert(name_of(name).to_ascii_lowercase())),
            }
        }
        let origins = headers
            .iter()
            .filter(|(name, _)| name == ACCESS_CONTROL_ALLOW_ORIGIN)
            .filter_map(|(_, value)| value.to_str().ok());
        // Who lets every page read has not said that every page may run commands.
        guard.origins = origins.filter(|origin| *origin != "*").map(str::to_ascii_lowercase).collect();
        guard.names.remove("");
        guard
    }

    /// Is the request answered? The error is what the client reads, with status 403.
    ///
    /// # Errors
    /// When a web page has made the request, or may have.
    pub fn admit<B>(&self, request: &Request<B>) -> Result<(), String> {
        if request.extensions().get::<NotFromBrowser>().is_none() {
            let authority = request.uri().authority().map(http::uri::Authority::as_str);
            let headers = request.headers().get_all(HOST).into_iter().map(|value| value.to_str().unwrap_or("?"));
            for host in authority.into_iter().chain(headers) {
                self.known(host)?;
            }
        }
        if acts(request.method(), request.uri().path(), request.headers()) {
            self.not_a_page(request.headers())?;
        }
        Ok(())
    }

    /// Pages of this origin may send what a browser asks about first.
    pub(crate) fn trusts(&self, origin: &HeaderValue) -> bool {
        origin.to_str().is_ok_and(|origin| self.origins.contains(&origin.to_ascii_lowercase()))
    }

    fn known(&self, host: &str) -> Result<(), String> {
        let name = name_of(host).to_ascii_lowercase();
        let address = name.parse::<std::net::IpAddr>().is_ok();
        let listed = || self.names.contains(&name) || self.domains.iter().any(|domain| name.ends_with(domain.as_str()));
        if self.any || name.is_empty() || address || name == "localhost" || listed() {
            return Ok(());
        }
        let own: Vec<&str> = self.names.iter().map(String::as_str).collect();
        Err(format!(
            "the request is for the host {name:?}, which is not a name of this agent: a web page may be behind it. \
                Use an IP address or one of \
             localhost{}{}, or add the name to drover {{ http_hosts = [..] }} in the agent's configuration\n",
            if own.is_empty() { "" } else { ", " },
            own.join(", ")
        ))
    }

    fn not_a_page(&self, headers: &HeaderMap) -> Result<(), String> {
        let site = headers.get(SITE).and_then(|site| site.to_str().ok()).unwrap_or_default();
        let origin = headers.get(ORIGIN);
        let trusted = origin.is_some_and(|origin| self.trusts(origin) || same_host(origin, headers.get(HOST)));
        let from = match origin {
            Some(origin) if !trusted => format!("of {:?}", origin.to_str().unwrap_or("?")),
            None if matches!(site, "cross-site" | "same-site") => "of another site".to_owned(),
            _ => return Ok(()),
        };
        Err(format!(
            "the request comes from a web page {from}, and pages of others change nothing here: send it from a \
                program, or name the page's \
             origin in http_api_response_headers {{ Access-Control-Allow-Origin = .. }} of the agent's configuration\n"
        ))
    }
}

/// Does the request do more than read?
fn acts(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    if method == Method::OPTIONS {
        return false;
    }
    let reads = matches!(*method, Method::GET | Method::HEAD);
    // A web socket is a conversation, and these are reads by their method only.
    !reads
        || headers.contains_key(UPGRADE)
        || (path.starts_with("/v1/client/") && ["/gc", "/exec"].iter().any(|end| path.ends_with(end)))
}

/// The name in `name:port`, `[address]:port`, or alone.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(address, _)| address);
    }
    match host.rsplit_once(':') {
        // More colons: an address without brackets.
        Some((name, port)) if !name.contains(':') && port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// A browser's page comes from the host that it asks.
fn same_host(origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
    let origin = origin.to_str().ok().and_then(|o| o.split_once("://")).map(|(_, host)| host);
    origin.is_some_and(|o| host.and_then(|h| h.to_str().ok()).is_some_and(|h| h.eq_ignore_ascii_case(o)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        let allowed = ["drover.example.com".to_owned(), "*.corp".to_owned()];
        let headers = [(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("https://console.example.com"))];
        Guard::new(["Node-1", "10.0.0.5:4646", ""], &allowed, &headers)
    }

    fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request")
    }

    #[test]
    fn hosts() {
        for (host, ok) in [
            ("127.0.0.1:4646", true),
            ("10.9.8.7", true),
            ("[::1]:4646", true),
            ("[fd00::1]", true),
            ("localhost:4646", true),
            ("LOCALHOST", true),
            ("node-1", true),
            ("NODE-1:80", true),
            ("drover.example.com:443", true),
            ("a.b.corp", true),
            ("corp", false),
            ("evilcorp", false),
            ("evil.example", false),
            ("evil.example:4646", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("node-1.evil.example", false),
            ("localhost:4646:evil", false),
            ("", true),
        ] {
            assert_eq!(guard().admit(&request("GET", "/v1/jobs", &[("host", host)])).is_ok(), ok, "{host:?}");
        }
        let why = guard().admit(&request("GET", "/v1/jobs", &[("host", "evil.example")])).expect_err("a foreign name");
        assert!(why.contains("\"evil.example\"") && why.contains("node-1") && why.contains("http_hosts"), "{why}");
        assert!(guard().admit(&request("GET", "http://evil.example/v1/jobs", &[("host", "localhost")])).is_err());
        assert!(guard().admit(&request("GET", "/v1/jobs", &[])).is_ok(), "no browser leaves it out");
        assert!(Guard::new([], &["*".to_owned()], &[]).admit(&request("GET", "/", &[("host", "any.thing")])).is_ok());
        let mut socket = request("GET", "/v1/jobs", &[("host", "%2Fsecrets%2Fapi.sock")]);
        assert!(guard().admit(&socket).is_err());
        socket.extensions_mut().insert(NotFromBrowser);
        assert!(guard().admit(&socket).is_ok());
    }

    #[test]
    fn pages() {
        let host = ("host", "localhost:4646");
        let own = ("origin", "http://localhost:4646");
        let foreign = ("origin", "http://evil.example");
        for (method, path, headers, ok) in [
            ("POST", "/v1/jobs", vec![host], true),
            ("POST", "/v1/jobs", vec![host, own], true),
            ("POST", "/v1/jobs", vec![host, own, ("sec-fetch-site", "same-origin")], true),
            (
                "POST",
                "/v1/jobs",
                vec![host, ("origin", "https://console.example.com"), ("sec-fetch-site", "cross-site")],
                true,
            ),
            ("POST", "/v1/jobs", vec![host, foreign], false),
            ("POST", "/v1/jobs", vec![host, ("origin", "null")], false),
            (
                "POST",
                "/v1/jobs",
                vec![host, ("origin", "http://localhost:3000"), ("sec-fetch-site", "same-site")],
                false,
            ),
            ("DELETE", "/v1/job/x", vec![host, foreign], false),
            ("PATCH", "/v1/job/x", vec![host, foreign], false),
            ("PUT", "/v1/jobs", vec![host, ("sec-fetch-site", "cross-site")], false),
            ("PUT", "/v1/jobs", vec![host, ("sec-fetch-site", "none")], true),
            ("GET", "/v1/jobs", vec![host, foreign, ("sec-fetch-site", "cross-site")], true),
            ("GET", "/v1/client/gc", vec![host, ("sec-fetch-site", "cross-site")], false),
            ("GET", "/v1/client/allocation/x/gc", vec![host, foreign], false),
            ("GET", "/v1/client/allocation/x/gc", vec![host], true),
            ("GET", "/v1/client/allocation/x/exec", vec![host, foreign, ("upgrade", "websocket")], false),
            ("GET", "/v1/event/stream", vec![host, foreign, ("upgrade", "websocket")], false),
            ("GET", "/v1/client/allocation/x/exec", vec![host, own, ("upgrade", "websocket")], true),
            (
                "GET",
                "/v1/client/allocation/x/exec",
                vec![host, ("origin", "https://LOCALHOST:4646"), ("upgrade", "websocket")],
                true,
            ),
            (
                "GET",
                "/v1/client/allocation/x/exec",
                vec![host, ("origin", "http://localhost"), ("upgrade", "websocket")],
                false,
            ),
            ("GET", "/v1/client/allocation/x/exec", vec![host, ("origin", "null"), ("upgrade", "websocket")], false),
            (
                "GET",
                "/v1/client/allocation/x/exec",
                vec![host, ("origin", "https://console.example.com"), ("upgrade", "websocket")],
                true,
            ),
        ] {
            assert_eq!(guard().admit(&request(method, path, &headers)).is_ok(), ok, "{method} {path} {headers:?}");
        }
        let open = [(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"))];
        let open = Guard::new([], &[], &open);
        assert!(
            open.admit(&request("POST", "/v1/jobs", &[host, foreign])).is_err(),
            "all may read, which is not to say that all may act"
        );
    }
}
