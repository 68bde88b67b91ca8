use std::convert::Infallible;

use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::*;
use crate::shapes::StreamFrame;

/// A server that answers with what it was asked.
async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let (status, body) = match path.as_str() {
        "/v1/error" => (404, "job not found".to_owned()),
        "/v1/frames" => (200, r#"{"Data":"aGVs","File":"f","Offset":3}{}{"Data":"bG8=","Offset":5}"#.to_owned()),
        "/v1/broken-frames" => (200, r#"{"Data":"aGVs"}unknown task name "x""#.to_owned()),
        "/v1/lines" => (200, "{}\n{\"Index\":3}\n".to_owned()),
        "/v1/nonsense" => (200, "<html>".to_owned()),
        _ => {
            let token =
                request.headers().get("x-nomad-token").and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
            let (method, uri) = (request.method().to_string(), request.uri().to_string());
            let body = transport::collect(request.into_body()).await.unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            (200, json!({"Method": method, "Uri": uri, "Token": token, "Body": body}).to_string())
        }
    };
    Ok(Response::builder()
        .status(status)
        .header("X-Nomad-Index", "42")
        .header("X-Nomad-KnownLeader", "true")
        .header("X-Nomad-LastContact", "7")
        .body(Full::from(body))
        .expect("response"))
}

async fn serve() -> ApiClient {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("address"));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(echo)));
        }
    });
    ApiClient::new(ClientOptions {
        address,
        region: "eu".into(),
        namespace: "ns 1".into(),
        token: "secret".into(),
        ..ClientOptions::default()
    })
    .expect("client")
}

#[test]
fn addresses() {
    for (text, shown) in [
        ("http://127.0.0.1:4646", "http://127.0.0.1:4646"),
        ("127.0.0.1:80", "http://127.0.0.1:80"),
        ("http://host", "http://host:4646"),
        ("http://host/", "http://host:4646"),
        ("http://[::1]:99", "http://[::1]:99"),
        ("https://h:1", "https://h:1"),
        ("unix:///run/drover.sock", "unix:///run/drover.sock"),
    ] {
        assert_eq!(Address::parse(text).expect(text).to_string(), shown, "{text}");
    }
    for text in [
        "ftp://h",
        "http://",
        "unix://",
        "http://h:99999",
        "http://::1:80",
        "http://a b",
        "http://h/path",
        "http://u@h",
    ] {
        assert!(Address::parse(text).is_err(), "{text}");
    }
}

#[test]
fn the_token_is_not_shown() {
    let options = ClientOptions { token: "secret".into(), ..ClientOptions::default() };
    assert!(!format!("{options:?}").contains("secret"));
}

#[tokio::test]
async fn requests_and_answers() {
    let client = serve().await;
    let options = RequestOptions::after(9, Duration::from_millis(1500)).with("prefix", "a/b&c");
    let answer: Answer<Value> = client.query("/v1/jobs", &options).await.expect("answer");
    assert_eq!(
        answer.value,
        json!({"Method": "GET", "Uri": "/v1/jobs?region=eu&namespace=ns%201&index=9&wait=1.5s&prefix=a%2Fb%26c",
            "Token": "secret", "Body": null})
    );
    assert_eq!(
        answer.meta,
        Meta { index: 42, known_leader: true, last_contact: Duration::from_millis(7), next_token: String::new() }
    );
    let answer: Value = client.put("/v1/jobs?a=b", &json!({"Job": {"ID": "x"}})).await.expect("answer");
    assert_eq!(
        (&answer["Uri"], &answer["Body"]),
        (&json!("/v1/jobs?a=b&region=eu&namespace=ns%201"), &json!({"Job": {"ID": "x"}}))
    );
    let answer: Answer<Value> =
        client.delete("/v1/job/x", &RequestOptions::default().in_namespace("*")).await.expect("answer");
    assert_eq!(
        (&answer.value["Method"], &answer.value["Uri"]),
        (&json!("DELETE"), &json!("/v1/job/x?region=eu&namespace=%2A"))
    );
}

#[tokio::test]
async fn errors_are_typed() {
    let client = serve().await;
    let error = client.get::<Value>("/v1/error").await.expect_err("404");
    assert!(error.is_not_found());
    assert_eq!(error.to_string(), "Unexpected response code: 404 (job not found)");
    assert_eq!(error.message(), "job not found");
    assert!(matches!(client.get::<Value>("/v1/nonsense").await, Err(ClientError::Answer { .. })));
    // Kept from everybody else, and nobody listens.
    let bound = tokio::net::TcpSocket::new_v4().expect("socket");
    bound.bind(std::net::SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    let address = bound.local_addr().expect("address").to_string();
    let nobody = ApiClient::new(ClientOptions { address, ..ClientOptions::default() }).expect("client");
    let error = nobody.get::<Value>("/v1/jobs").await.expect_err("nobody listens");
    assert!(matches!(error, ClientError::Connect { .. }), "{error}");
}

#[tokio::test]
async fn streams() {
    let client = serve().await;
    let mut frames = client.stream("/v1/frames", &RequestOptions::default()).await.expect("stream").frames();
    let first = frames.next().await.expect("frame").expect("content");
    assert_eq!(first, StreamFrame { data: b"hel".to_vec(), file: "f".into(), offset: 3, ..StreamFrame::default() });
    assert_eq!(frames.next().await.expect("frame").expect("content").data, b"lo");
    assert!(frames.next().await.expect("end").is_none());

    let mut frames = client.stream("/v1/broken-frames", &RequestOptions::default()).await.expect("stream").frames();
    assert!(frames.next().await.expect("frame").is_some());
    assert_eq!(frames.next().await.expect_err("text in the stream").message(), "unknown task name \"x\"");

    let mut lines = client.stream("/v1/lines", &RequestOptions::default()).await.expect("stream").json::<Value>();
    assert_eq!(lines.next().await.expect("line"), Some(json!({})));
    assert_eq!(lines.next().await.expect("line"), Some(json!({"Index": 3})));
    assert_eq!(lines.next().await.expect("line"), None);
}

#[tokio::test]
async fn connections_are_reused_and_replaced() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("address").to_string();
    let (count, mut counted) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        // Each connection serves two requests and is closed by the server.
        while let Ok((stream, _)) = listener.accept().await {
            count.send(()).ok();
            let served = std::sync::atomic::AtomicU32::new(0);
            let service = service_fn(move |r| {
                let last = served.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 1;
                async move {
                    let mut response = echo(r).await?;
                    if last {
                        response.headers_mut().insert("connection", http::HeaderValue::from_static("close"));
                    }
                    Ok::<_, Infallible>(response)
                }
            });
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    let client = ApiClient::new(ClientOptions { address, ..ClientOptions::default() }).expect("client");
    for _ in 0..6 {
        client.get::<Value>("/v1/jobs").await.expect("answer");
    }
    let mut connections = 0;
    while counted.try_recv().is_ok() {
        connections += 1;
    }
    assert_eq!(connections, 3);
}
