//! What the cluster looked like for longer than the last hour, from a Prometheus that collects its metrics:
//! `GET /v1/metrics/history`.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use api::{query::percent_encode, shapes::Trend};
use http::StatusCode;
use serde::Deserialize;
use tls::Roots;

use crate::{
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Points of an answer, about.
const POINTS: u64 = 240;
/// From one point to the next at least: servers make one every ten seconds.
const STEP: u64 = 10;
/// How far back a request may reach: a year.
const FARTHEST: u64 = 366 * 24 * 3600;
/// Values as they are, with the names that `/v1/metrics` gives them. Only the server that leads has them.
const VALUES: &str = "max by (__name__) ({__name__=~\"drover_cluster_(nodes_ready|allocs_running|cpu_used|cpu_total|\
    memory_used_mb|memory_total_mb|queued|unmanaged)\"})";
/// Totals, of which a point tells what came since the one before.
const PLACED: &str = "drover_cluster_placed";
const HAND_OVERS: &str = "drover_cluster_hand_overs";

/// A Prometheus. Cheap to clone.
#[derive(Clone)]
pub struct History {
    url: Arc<str>,
    roots: Option<Roots>,
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("url", &self.url).finish_non_exhaustive()
    }
}

/// Prometheus' answer to a range query (its HTTP API, "Range queries"), as far as it is read here.
#[derive(Debug, Default, Deserialize)]
struct Answer {
    #[serde(default)]
    data: Data,
}

#[derive(Debug, Default, Deserialize)]
struct Data {
    #[serde(default)]
    result: Vec<Series>,
}

#[derive(Debug, Deserialize)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    /// Seconds of the Unix time, and the value as text.
    values: Vec<(f64, String)>,
}

impl History {
    /// The one at this URL, `http://` or `https://`; for the latter its certificate must come from `roots`.
    #[must_use]
    pub fn new(url: &str, roots: Option<Roots>) -> Self {
        Self { url: url.trim_end_matches('/').into(), roots }
    }

    async fn ask(&self, query: &str, from: u64, to: u64, step: u64) -> Result<Vec<Series>, String> {
        let form = format!("query={}&start={from}&end={to}&step={step}", percent_encode(query));
        let url = format!("{}/api/v1/query_range", self.url);
        let body = fetch::fetch(self.roots.as_ref(), &url, None, Some(form)).await?;
        let answer: Answer =
            serde_json::from_slice(&body).map_err(|e| format!("its answer is none of Prometheus: {e}"))?;
        Ok(answer.data.result)
    }

    /// The points of the time from `from` to `to`, in seconds of the Unix time.
    async fn points(&self, from: u64, to: u64) -> Result<Vec<Trend>, String> {
        let step = ((to - from) / POINTS).max(STEP);
        // Over one step nothing is missing between two points; Prometheus wants two samples within.
        let over = step.max(60);
        let grown = |name: &str| format!("sum(increase({name}[{over}s])) * {step} / {over}");
        let (placed, hand_overs) = (grown(PLACED), grown(HAND_OVERS));
        let (values, placed, hand_overs) = tokio::try_join!(
            self.ask(VALUES, from, to, step),
            self.ask(&placed, from, to, step),
            self.ask(&hand_overs, from, to, step),
        )?;
        Ok(joined(&values, &placed, &hand_overs))
    }
}

/// Rows of all series by time.
fn joined(values: &[Series], placed: &[Series], hand_overs: &[Series]) -> Vec<Trend> {
    let mut points: BTreeMap<i64, Trend> = BTreeMap::new();
    let mut add = |series: &Series, set: &dyn Fn(&mut Trend, f64)| {
        for (at, value) in &series.values {
            let Some(value) = value.parse().ok().filter(|value: &f64| value.is_finite()) else { continue };
            #[expect(clippy::cast_possible_truncation, reason = "times of this age fit")]
            let time = (at * 1000.0).round() as i64 * 1_000_000;
            set(points.entry(time).or_insert_with(|| Trend { time, ..Trend::default() }), value);
        }
    };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float becomes the nearest number")]
    let (whole, signed) = (|value: f64| value.round() as u64, |value: f64| value.round() as i64);
    for series in values {
        let name = series.metric.get("__name__").map_or("", String::as_str);
        match name.strip_prefix("drover_cluster_").unwrap_or_default() {
            "nodes_ready" => add(series, &|point, value| point.nodes_ready = whole(value)),
            "allocs_running" => add(series, &|point, value| point.allocs_running = whole(value)),
            "cpu_used" => add(series, &|point, value| point.cpu_used = signed(value)),
            "cpu_total" => add(series, &|point, value| point.cpu_total = signed(value)),
            "memory_used_mb" => add(series, &|point, value| point.memory_used_mb = signed(value)),
            "memory_total_mb" => add(series, &|point, value| point.memory_total_mb = signed(value)),
            "queued" => add(series, &|point, value| point.queued = whole(value)),
            "unmanaged" => add(series, &|point, value| point.unmanaged = whole(value)),
            _ => {}
        }
    }
    for series in placed {
        add(series, &|point, value| point.placed = whole(value));
    }
    for series in hand_overs {
        add(series, &|point, value| point.hand_overs = whole(value));
    }
    points.into_values().collect()
}

pub(crate) async fn history(ctx: Ctx) -> Result<Reply, HttpError> {
    let seconds: u64 = ctx.query.number("seconds")?.unwrap_or(24 * 3600);
    if !(60..=FARTHEST).contains(&seconds) {
        return Err(HttpError::bad_request(format_args!("seconds must be from 60 to {FARTHEST}, it is {seconds}")));
    }
    let Some(history) = &ctx.app.options.history else {
        return Err(HttpError::not_found(
            "this agent knows no Prometheus: set prometheus_url in the drover block of its configuration",
        ));
    };
    let to = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let points = history.points(to.saturating_sub(seconds), to).await.map_err(|why| {
        HttpError::new(StatusCode::BAD_GATEWAY, format_args!("could not ask Prometheus at {}: {why}", history.url))
    })?;
    ctx.plain(&points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(json: &str) -> Vec<Series> {
        let answer: Answer = serde_json::from_str(json).expect("an answer");
        answer.data.result
    }

    #[test]
    fn series_become_points_by_time() {
        let values = series(
            r#"{"status":"success","data":{"resultType":"matrix","result":[
            {"metric":{"__name__":"drover_cluster_cpu_used"},"values":[[100,"1500"],[110.5,"NaN"],[120,"2000.4"]]},
            {"metric":{"__name__":"drover_cluster_nodes_ready"},"values":[[100,"3"]]},
            {"metric":{"__name__":"something_else"},"values":[[100,"9"]]}]}}"#,
        );
        let placed = series(r#"{"data":{"result":[{"metric":{},"values":[[120,"6.6"]]}]}}"#);
        let at =
            |time, cpu_used, nodes_ready, placed| Trend { time, cpu_used, nodes_ready, placed, ..Trend::default() };
        assert_eq!(joined(&values, &placed, &[]), [at(100_000_000_000, 1500, 3, 0), at(120_000_000_000, 2000, 0, 7)]);
        assert_eq!(joined(&series("{}"), &[], &[]), []);
    }
}
