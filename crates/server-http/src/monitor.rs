//! The agent's log, followed: `GET /v1/agent/monitor`.

use std::time::Duration;

use api::{query::Query, shapes::StreamFrame};
use axum::body::Body;
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{HeaderValue, Response, header::CONTENT_TYPE};
use model::NodeId;
use tracing::level_filters::LevelFilter;

use crate::{
    options::{FollowLog, LogQuery},
    proxy,
    reply::{HttpError, Reply},
    request::{Ctx, uuid},
};

/// An idle stream shows that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorQuery {
    log: LogQuery,
    plain: bool,
    /// The node whose agent is meant; empty = not said.
    pub node: String,
    /// The server whose agent is meant; empty = not said.
    pub server: String,
}

impl MonitorQuery {
    /// Reads a request's query. The error is what its client is told, with 400.
    ///
    /// # Errors
    /// When a value is none that there is.
    pub fn parse(query: &Query) -> Result<Self, String> {
        let flag = |name: &'static str, shown: &str| {
            query.bool(name).map_err(|error| format!("Unknown option for {shown}: {error}"))
        };
        let level = match query.text("log_level").to_ascii_lowercase().as_str() {
            "" | "info" => LevelFilter::INFO,
            "trace" => LevelFilter::TRACE,
            "debug" => LevelFilter::DEBUG,
            "warn" => LevelFilter::WARN,
            "error" => LevelFilter::ERROR,
            "off" => LevelFilter::OFF,
            _ => return Err(format!("Unknown log level: {}", query.text("log_level"))),
        };
        let log = LogQuery {
            level,
            json: flag("log_json", "log json")?,
            location: flag("log_include_location", "log_include_location")?,
        };
        let (node, server) = (query.text("node_id").to_owned(), query.text("server_id").to_owned());
        if !node.is_empty() && !server.is_empty() {
            return Err("Cannot target node and server simultaneously".to_owned());
        }
        Ok(Self { log, plain: flag("plain", "plain")?, node, server })
    }

    /// The answer of the agent that is meant: frames, or plain lines.
    ///
    /// # Errors
    /// When nobody more may follow its log.
    pub fn answer(&self, follow: &FollowLog) -> Result<Response<Body>, String> {
        let lines = follow(self.log)?;
        let plain = self.plain;
        let pieces = stream::unfold(lines, move |mut lines| async move {
            let piece = match tokio::time::timeout(HEARTBEAT, lines.next()).await {
                Ok(None) => return None,
                Ok(Some(data)) => Some(data),
                Err(_) => None,
            };
            Some((frame(piece, plain), lines))
        });
        let body = Body::from_stream(
            pieces.filter_map(async |piece: Option<Bytes>| piece.map(Ok::<_, std::convert::Infallible>)),
        );
        let mut response = Response::new(body);
        let kind = if plain { "text/plain" } else { "application/json" };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        Ok(response)
    }
}

/// A piece of the log as it is sent; None is a sign of life, which plain text has no room for.
fn frame(piece: Option<Vec<u8>>, plain: bool) -> Option<Bytes> {
    match (piece, plain) {
        (Some(data), true) => Some(data.into()),
        (None, true) => None,
        (None, false) => Some(Bytes::from_static(b"{}")),
        (Some(data), false) => {
            let frame = StreamFrame { data, file_event: "log".to_owned(), ..StreamFrame::default() };
            serde_json::to_vec(&frame).ok().map(Bytes::from)
        }
    }
}

pub(crate) async fn monitor(ctx: Ctx) -> Result<Reply, HttpError> {
    let asked = MonitorQuery::parse(&ctx.query).map_err(HttpError::bad_request)?;
    if !asked.node.is_empty() {
        let id = NodeId(uuid(&asked.node, "node")?);
        if ctx.app.options.local.as_ref().is_none_or(|local| local.node_id != id) {
            return proxy::forward(ctx, id).await;
        }
    }
    let config = ctx.server().config();
    let own = [
        &config.name,
        &format!("{}.{}", config.name, config.region),
        &ctx.server().cluster_id().to_string(),
        "leader",
        "",
    ];
    if !own.contains(&asked.server.as_str()) {
        return Err(HttpError::bad_request(format_args!("unknown Nomad server {}", asked.server)));
    }
    let Some(follow) = &ctx.app.options.follow_log else {
        return Err(HttpError::unsupported("following the agent's log", "this server has no agent around it"));
    };
    asked.answer(follow).map(Reply::foreign).map_err(|why| HttpError::new(http::StatusCode::TOO_MANY_REQUESTS, why))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use http_body_util::BodyExt as _;

    use super::*;

    fn parse(query: &str) -> Result<MonitorQuery, String> {
        MonitorQuery::parse(&Query::parse(query).expect("a query"))
    }

    #[test]
    fn what_is_asked_for_is_read_as_a_stock_agent_reads_it() {
        let usual = LogQuery { level: LevelFilter::INFO, json: false, location: false };
        for (query, log, plain) in [
            ("", usual, false),
            ("log_level=DEBUG&plain=true", LogQuery { level: LevelFilter::DEBUG, ..usual }, true),
            ("log_level=off&log_json=1", LogQuery { level: LevelFilter::OFF, json: true, ..usual }, false),
            ("log_include_location=t&server_id=leader", LogQuery { location: true, ..usual }, false),
        ] {
            let asked = parse(query).expect(query);
            assert_eq!((asked.log, asked.plain), (log, plain), "{query}");
        }
        for (query, why) in [
            ("log_level=loud", "Unknown log level: loud"),
            ("log_json=x", "Unknown option for log json"),
            ("plain=x", "Unknown option for plain"),
            ("node_id=a&server_id=b", "Cannot target node and server simultaneously"),
        ] {
            assert!(parse(query).expect_err(query).starts_with(why), "{query}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lines_come_in_frames_with_signs_of_life_between() {
        let follow: FollowLog = Arc::new(|_| {
            let late = stream::once(async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                b"two\n".to_vec()
            });
            Ok(stream::iter([b"one\n".to_vec()]).chain(late).boxed())
        });
        let text = async |query| {
            let body = parse(query).expect("a query").answer(&follow).expect("an answer").into_body();
            String::from_utf8(body.collect().await.expect("a body").to_bytes().to_vec()).expect("text")
        };
        assert_eq!(text("plain=true").await, "one\ntwo\n");
        assert_eq!(text("").await, r#"{"Data":"b25lCg==","FileEvent":"log"}{}{"Data":"dHdvCg==","FileEvent":"log"}"#);
        let full: FollowLog = Arc::new(|_| Err("full".to_owned()));
        assert_eq!(parse("").expect("a query").answer(&full).map(drop), Err("full".to_owned()));
    }
}
