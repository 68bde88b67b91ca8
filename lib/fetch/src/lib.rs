//! One request over HTTP to another program, with bounds on its time and on its answer.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use tls::{Dialer, Protocol, Roots};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

/// How long a whole request may take.
const PATIENCE: Duration = Duration::from_secs(15);
/// Longest answer that is read, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Sends one request and reads the answer's body: `POST` with a form, `GET` without one. Plain HTTP needs no roots. The
/// connection is not kept. Dropping the future ends it; the request may have been carried out.
///
/// # Errors
/// Why there is no answer that says 200, as a part of a sentence: it could not be reached, took longer than 15 seconds,
/// sent more than 1 MiB, redirects (which is not followed), or refuses. Of a refusal's body only the fields of OAuth's
/// errors are told.
pub async fn fetch(
    roots: Option<&Roots>,
    url: &str,
    authorization: Option<&str>,
    form: Option<String>,
) -> Result<Bytes, String> {
    match tokio::time::timeout(PATIENCE, send(roots, url, authorization, form)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
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
        return exchange(stream, request, MAX_ANSWER).await.and_then(done);
    }
    // Without roots a dialler would take any certificate.
    let roots = roots.ok_or("no authority is known for its certificate")?.clone();
    let dialer = Dialer::of_roots(Some(roots), "", Protocol::Http1).map_err(|e| e.to_string())?;
    let stream = dialer.connect(stream, host).await.map_err(|e| tls::why(&e))?;
    exchange(stream, request, MAX_ANSWER).await.and_then(done)
}

/// Sends one request over a connection and reads the answer's body, of at most `max` bytes.
///
/// # Errors
/// The connection broke, the answer is larger, or it redirects, which is not followed.
pub async fn exchange<T>(stream: T, request: Request<Full<Bytes>>, max: usize) -> Result<(StatusCode, Bytes), String>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let broken = |e: hyper::Error| format!("the connection broke: {e}");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // Ends when the sender is dropped; its errors reach the request.
    tokio::spawn(async move { connection.await.ok() });
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    if status.is_redirection() {
        return Err(format!("it answers {status}, and redirects are not followed; write the address that it leads to"));
    }
    let body = Limited::new(response.into_body(), max).collect().await;
    let body = body.map_err(|e| match e.is::<http_body_util::LengthLimitError>() {
        true => format!("the answer is larger than {max} bytes"),
        false => format!("the answer broke off: {e}"),
    })?;
    Ok((status, body.to_bytes()))
}

/// The body of an answer that says 200.
fn done((status, body): (StatusCode, Bytes)) -> Result<Bytes, String> {
    match status {
        StatusCode::OK => Ok(body),
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

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    /// What comes of one request that is answered so.
    async fn answered(answer: String, form: Option<&str>) -> (String, Result<Bytes, String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/a?b=c", listener.local_addr().expect("its address"));
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let mut asked = vec![0; 4096];
            let n = stream.read(&mut asked).await.expect("a request");
            // The client may hang up in the middle of what is too much.
            drop(stream.write_all(answer.as_bytes()).await);
            String::from_utf8_lossy(&asked[..n]).into_owned()
        });
        let got = fetch(None, &url, None, form.map(str::to_owned)).await;
        (served.await.expect("it answers"), got)
    }

    fn http(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn an_answer_is_its_body_or_why_there_is_none() {
        let (asked, got) = answered(http("200 OK", "well"), None).await;
        assert!(asked.starts_with("GET /a?b=c HTTP/1.1\r\n"), "{asked}");
        assert_eq!(got.expect("an answer"), "well");
        let (asked, _) = answered(http("200 OK", ""), Some("x=y")).await;
        assert!(asked.starts_with("POST /a?b=c ") && asked.contains("application/x-www-form-urlencoded"), "{asked}");
        for (answer, told) in [
            (http("302 Found", ""), "it answers 302 Found, and redirects are not followed"),
            (
                http("400 Bad Request", r#"{"error":"bad_data","error_description":"no"}"#),
                "400 Bad Request, bad_data: no",
            ),
            (http("500 Internal Server Error", "a secret"), "it answers 500 Internal Server Error"),
            (http("200 OK", &"x".repeat(MAX_ANSWER + 1)), "the answer is larger than 1048576 bytes"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nwell".to_owned(), "the answer broke off"),
            ("nonsense\r\n\r\n".to_owned(), "the connection broke"),
        ] {
            let why = answered(answer, None).await.1.expect_err("no answer");
            assert!(why.contains(told) && !why.contains("secret"), "{why}");
        }
        let nobody = fetch(None, "http://127.0.0.1:1/", None, None).await.expect_err("nobody listens");
        assert!(nobody.contains("refused"), "{nobody}");
        let unknown = fetch(None, "https://127.0.0.1:1/", None, None).await;
        assert!(unknown.is_err(), "without an authority no certificate is believed");
    }
}
