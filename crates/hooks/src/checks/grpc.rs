//! Checks by the standard gRPC health service, `grpc.health.v1`.

use std::io;

use driver_proto::health::{HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient};
use hyper_util::rt::TokioIo;
use lifecycle::checks::Outcome;
use tls::Protocol;
use tokio::net::TcpStream;
use tonic::{
    Code,
    transport::{Channel, Endpoint},
};
use tower::service_fn;

use super::tls::Tls;

/// Checks once; an empty service means the whole server.
pub(super) async fn ask(host: &str, port: u16, service: &str, tls: Option<&Tls>) -> (Outcome, String) {
    let at = authority(host, port);
    let channel = match connect(host.to_owned(), port, &at, tls.cloned()).await {
        Ok(channel) => channel,
        Err(why) => return (Outcome::Fail, why),
    };
    match HealthClient::new(channel).check(HealthCheckRequest { service: service.to_owned() }).await {
        Ok(answer) => match answer.get_ref().status() {
            ServingStatus::Serving => (Outcome::Pass, "grpc: SERVING".to_owned()),
            other => (Outcome::Fail, format!("grpc: {}", other.as_str_name())),
        },
        Err(status) if status.code() == Code::Unimplemented => {
            (Outcome::Fail, format!("{at} does not serve grpc.health.v1.Health"))
        }
        Err(status) if status.code() == Code::NotFound => (Outcome::Fail, format!("{at} knows no service {service:?}")),
        Err(status) => (Outcome::Fail, format!("{at}: {:?}: {}", status.code(), status.message())),
    }
}

/// The `host:port` authority of a URL.
pub(super) fn authority(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

async fn connect(host: String, port: u16, at: &str, tls: Option<Tls>) -> Result<Channel, String> {
    let endpoint = Endpoint::from_shared(format!("http://{at}")).map_err(|e| format!("{at} is no address: {e}"))?;
    let failed = |e: tonic::transport::Error| {
        let mut cause: &dyn std::error::Error = &e;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        format!("connect to {at}: {cause}")
    };
    match tls {
        None => {
            let connector = service_fn(move |_| {
                let host = host.clone();
                async move { TcpStream::connect((host.as_str(), port)).await.map(TokioIo::new) }
            });
            endpoint.connect_with_connector(connector).await.map_err(failed)
        }
        Some(tls) => {
            let connector = service_fn(move |_| {
                let (tls, host) = (tls.clone(), host.clone());
                async move {
                    let stream = TcpStream::connect((host.as_str(), port)).await?;
                    tls.connect(stream, &host, Protocol::Http2).await.map(TokioIo::new).map_err(io::Error::other)
                }
            });
            endpoint.connect_with_connector(connector).await.map_err(failed)
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_proto::health::{
        HealthCheckResponse,
        health_server::{Health, HealthServer},
    };
    use hyper::server::conn::http2;
    use hyper_util::{rt::TokioExecutor, service::TowerToHyperService};
    use tokio::net::{TcpListener, TcpSocket};
    use tokio_stream::{Empty, wrappers::TcpListenerStream};
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::checks;

    struct Fake;

    #[tonic::async_trait]
    impl Health for Fake {
        async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
            let status = match request.get_ref().service.as_str() {
                "" | "good" => ServingStatus::Serving,
                "bad" => ServingStatus::NotServing,
                _ => return Err(Status::not_found("unknown")),
            };
            Ok(Response::new(HealthCheckResponse { status: status.into() }))
        }

        type WatchStream = Empty<Result<HealthCheckResponse, Status>>;

        async fn watch(&self, _: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
            Err(Status::unimplemented("not here"))
        }
    }

    #[tokio::test]
    async fn the_health_service_says_what_a_service_does() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("address").port();
        let serving = tonic::transport::Server::builder()
            .add_service(HealthServer::new(Fake))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(serving);
        for (service, outcome, said) in [
            ("", Outcome::Pass, "grpc: SERVING"),
            ("good", Outcome::Pass, "grpc: SERVING"),
            ("bad", Outcome::Fail, "grpc: NOT_SERVING"),
            ("other", Outcome::Fail, "knows no service \"other\""),
        ] {
            let found = ask("127.0.0.1", port, service, None).await;
            assert!(found.0 == outcome && found.1.contains(said), "{service}: {found:?}");
        }
        server.abort();
        let _ = server.await;
        // Bound, so that nobody else gets it, and nobody listens.
        let taken = TcpSocket::new_v4().expect("a socket");
        taken.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        let port = taken.local_addr().expect("address").port();
        let found = ask("127.0.0.1", port, "", None).await;
        assert!(found.0 == Outcome::Fail && found.1.contains(&format!("connect to 127.0.0.1:{port}")), "{found:?}");
    }

    #[tokio::test]
    async fn the_health_service_is_asked_over_tls() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("address").port();
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(stream) = checks::tls::tests::acceptor(b"h2").accept(stream).await else { continue };
                let service = TowerToHyperService::new(HealthServer::new(Fake));
                // Ends with its client.
                let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
            }
        });
        let tls = |skip_verify| Tls { server_name: "web.test".into(), skip_verify };
        assert_eq!(ask("127.0.0.1", port, "good", Some(&tls(true))).await, (Outcome::Pass, "grpc: SERVING".to_owned()));
        let (outcome, said) = ask("127.0.0.1", port, "good", Some(&tls(false))).await;
        assert!(
            outcome == Outcome::Fail && said.contains(&format!("connect to 127.0.0.1:{port}: ")),
            "nobody vouches for it: {said}"
        );
        let (outcome, said) = ask("127.0.0.1", port, "good", None).await;
        assert!(outcome == Outcome::Fail, "it speaks TLS only: {said}");
        server.abort();
    }
}
