//! One request over HTTP to a provider, with bounds.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use login::oidc::safe_url;
use tls::{Dialer, Protocol, Roots};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// How long a whole request may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Why a provider did not answer a request as it should. Nothing has changed; the request may be repeated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("could not ask the identity provider at {url}: {why}")]
pub struct Unreachable {
    /// What was asked, without its query.
    pub url: String,
    /// Why there is no answer.
    pub why: String,
}

/// Sends one request. A body is a form. Plain HTTP needs no roots.
pub(crate) async fn ask(
    roots: Option<&Roots>,
    url: &str,
    authorization: Option<&str>,
    form: Option<String>,
) -> Result<Bytes, Unreachable> {
    let failed = |why: String| Unreachable { url: url.split('?').next().unwrap_or_default().to_owned(), why };
    safe_url(url).map_err(failed)?;
    let answer = tokio::time::timeout(PATIENCE, send(roots, url, authorization, form)).await;
    match answer {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(failed(format!("no answer within {} s", PATIENCE.as_secs()))),
    }
}

async fn send(
    roots: Option<&Roots>,
    url: &str,
    authorization: Option<&str>,
    form: Option<String>,
) -> Result<Bytes, String> {
    let uri: Uri = url.parse().map_err(|e| format!("it is no URL: {e}"))?;
    let secure = uri.scheme_str() == Some("https");
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
    let target = uri.path_and_query().map_or("/", |p| p.as_str());
    let mut request = Request::builder()
        .method(if form.is_some() { Method::POST } else { Method::GET })
        .uri(target)
        .header(header::HOST, uri.authority().map_or("", |a| a.as_str()))
        .header(header::ACCEPT, "application/json")
        .header(header::CONNECTION, "close");
    if form.is_some() {
        request = request.header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    }
    if let Some(authorization) = authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request.body(Full::new(Bytes::from(form.unwrap_or_default()))).map_err(|e| e.to_string())?;
    let stream = TcpStream::connect((host, port)).await.map_err(|e| e.to_string())?;
    if !secure {
        return exchange(stream, request).await;
    }
    // Without roots a dialler would take any certificate.
    let roots = roots.ok_or("no authority is known for its certificate")?.clone();
    let dialer = Dialer::of_roots(Some(roots), "", Protocol::Http1).map_err(|e| e.to_string())?;
    let stream = dialer.connect(stream, host).await.map_err(|e| tls::why(&e))?;
    exchange(stream, request).await
}

async fn exchange<T>(stream: T, request: Request<Full<Bytes>>) -> Result<Bytes, String>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |e: hyper::Error| format!("the connection broke: {e}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Ends when the sender is dropped; its errors reach the request.
    tokio::spawn(async move { connection.await.ok() });
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
    let body = body.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
        true => format!("the answer is larger than {MAX_ANSWER} bytes"),
        false => format!("the answer broke off: {e}"),
    })?;
    let body = body.to_bytes();
    match status {
        StatusCode::OK => Ok(body),
        status if status.is_redirection() => {
            Err(format!("it answers {status}, and redirects are not followed; write the address that it leads to"))
        }
        status => Err(format!("it answers {status}{}", said(&body))),
    }
}

/// What OAuth's errors say (RFC 6749, section 5.2); nothing else of an answer reaches people.
fn said(body: &[u8]) -> String {
    let Ok(error) = serde_json::from_slice::<serde_json::Value>(body) else { return String::new() };
    let text = |name: &str| error[name].as_str().map(|text| text.chars().take(200).collect::<String>());
    match (text("error"), text("error_description")) {
        (Some(code), Some(description)) => format!(", {code}: {description}"),
        (Some(code), None) => format!(", {code}"),
        _ => String::new(),
    }
}
