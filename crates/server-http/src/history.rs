//! What the cluster looked like for longer than the last hour, from a Prometheus that collects its metrics:
//! `GET /v1/metrics/history`.

use std::{collections::BTreeMap, time::Duration};

use api::shapes::Trend;
use http::StatusCode;

use crate::{
    metrics::{DRAWN, HAND_OVERS, PLACED, prometheus_name},
    prometheus::{History, Series},
    reply::{HttpError, Reply},
    request::Ctx,
};

/// Points of an answer, about.
const POINTS: u64 = 240;
/// From one point to the next at least: servers make one every ten seconds.
const STEP: u64 = 10;
/// How far back a request may reach: a year.
const FARTHEST: u64 = 366 * 24 * 3600;
/// Growth is told over five minutes at least: Prometheus wants two samples of a total, and collects once a minute.
const OVER: u64 = 300;

/// The points of the time from `from` to `to`, in seconds of the Unix time.
async fn points(history: &History, from: u64, to: u64) -> Result<Vec<Trend>, String> {
    let step = ((to - from) / POINTS).max(STEP);
    let over = step.max(OVER);
    let grown = |name: &str| format!("sum(increase({}[{over}s])) * {step} / {over}", prometheus_name(name));
    // Only the server that leads has them; while the lead changes, two may.
    let names: Vec<String> = DRAWN.iter().map(|drawn| prometheus_name(drawn.name)).collect();
    let values = format!("max by (__name__) ({{__name__=~\"{}\"}})", names.join("|"));
    let (placed, hand_overs) = (grown(PLACED), grown(HAND_OVERS));
    let (values, placed, hand_overs) = tokio::try_join!(
        history.ask(&values, from, to, step),
        history.ask(&placed, from, to, step),
        history.ask(&hand_overs, from, to, step),
    )?;
    Ok(joined(&values, &placed, &hand_overs))
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
    for series in values {
        let name = series.metric.get("__name__").map_or("", String::as_str);
        if let Some(drawn) = DRAWN.iter().find(|drawn| prometheus_name(drawn.name) == name) {
            add(series, &drawn.set);
        }
    }
    let whole = |value: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is the nearest number")]
        let whole = value.round() as u64;
        whole
    };
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
    let points = points(history, to.saturating_sub(seconds), to).await.map_err(|why| {
        HttpError::new(StatusCode::BAD_GATEWAY, format_args!("could not ask Prometheus at {}: {why}", history.url()))
    })?;
    ctx.plain(&points)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(json: &str) -> Vec<Series> {
        crate::prometheus::series(json.as_bytes()).expect("an answer")
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
