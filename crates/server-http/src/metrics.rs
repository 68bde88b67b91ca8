//! Metrics: gauges and counters of the server and of its jobs, as JSON or in Prometheus' text format.

use std::{collections::BTreeMap, fmt::Write as _, time::SystemTime};

use api::{
    go_json::Kept,
    shapes::{Gauge, RemoteSweep, Sampled, Trend},
};
use http::StatusCode;
use model::{NodeStatus, Observed, job::job_status};
use serde::Serialize;
use server::{requests::ServerStats, samples::Sample};
use state::State;

use crate::{
    audit::Audit,
    reply::{HttpError, Reply},
    request::Ctx,
};

/// `GET /v1/metrics`; lists are never null here.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct View {
    timestamp: String,
    gauges: Kept<Gauge>,
    points: Kept<()>,
    counters: Kept<Sampled>,
    samples: Kept<Sampled>,
}

/// The format that a request asks for: true = Prometheus'.
fn asked(format: &str, enabled: bool) -> Result<bool, (StatusCode, String)> {
    match format {
        "prometheus" if enabled => Ok(true),
        "prometheus" => Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "Prometheus is not enabled".to_owned())),
        "" => Ok(false),
        other => Err((StatusCode::BAD_REQUEST, format!("unknown format {other:?}: leave it out or use prometheus"))),
    }
}

const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// `GET /v1/metrics` of an agent that is only a node: its own gauges, as content type and body. `format` is the
/// request's, `enabled` says whether the operator wants Prometheus' one.
///
/// # Errors
/// Status and text, when the format is unknown or not enabled.
pub fn metrics_of_node(
    gauges: Vec<Gauge>,
    format: &str,
    enabled: bool,
) -> Result<(&'static str, Vec<u8>), (StatusCode, String)> {
    if asked(format, enabled)? {
        return Ok((PROMETHEUS, text_format(&gauges, &[], &[]).into_bytes()));
    }
    let body = api::go_json::to_vec(&View::of(gauges, &[], &[]), false)
        .map_err(|e| (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))?;
    Ok(("application/json", body))
}

/// The gauge `drover.relay.sessions`: sessions of nodes that a server which does not lead passes on to the leader.
#[must_use]
pub fn metric_of_relay(sessions: usize) -> Gauge {
    Gauge { name: "drover.relay.sessions".to_owned(), value: count(sessions), labels: BTreeMap::new() }
}

/// The gauge `drover.tls.expires_in`: seconds until each file of the agent's certificates, and of those for the shared
/// store, expires; below 0, it has.
pub fn metrics_of_tls(tls: Option<&tls::Agent>, store: Option<&tls::Service>) -> Vec<Gauge> {
    let now = SystemTime::now();
    let left = |until: SystemTime| match until.duration_since(now) {
        Ok(left) => left.as_secs_f64(),
        Err(past) => -past.duration().as_secs_f64(),
    };
    let gauge = |expiry: tls::Expiry| Gauge {
        name: "drover.tls.expires_in".to_owned(),
        value: left(expiry.not_after).round(),
        labels: [("file".to_owned(), expiry.setting.trim_start_matches("tls.").to_owned())].into(),
    };
    let of_agent = tls.map(tls::Agent::expiries).unwrap_or_default();
    let of_store = store.map(tls::Service::expiries).unwrap_or_default();
    of_agent.into_iter().chain(of_store).map(gauge).collect()
}

/// The gauge `drover.audit.lost`: events of the audit log since the start that a sink could not write.
pub fn metrics_of_audit(audit: Option<&Audit>) -> Vec<Gauge> {
    let gauge = |(sink, lost): (&str, u64)| Gauge {
        name: "drover.audit.lost".to_owned(),
        value: real(lost),
        labels: [("sink".to_owned(), sink.to_owned())].into(),
    };
    audit.iter().flat_map(|audit| audit.lost()).map(gauge).collect()
}

impl View {
    fn of(gauges: Vec<Gauge>, counters: &[(&'static str, u64)], samples: &[Sample]) -> Self {
        let distribution = |s: &Sample| Sampled {
            name: s.name.to_owned(),
            count: s.shown.count,
            rate: s.rate(),
            sum: s.shown.sum,
            min: s.shown.min,
            max: s.shown.max,
            mean: s.shown.mean(),
            stddev: s.shown.deviation(),
            ..Sampled::default()
        };
        let sampled = |(name, sum): &(&'static str, u64)| Sampled {
            name: (*name).to_owned(),
            count: *sum,
            sum: real(*sum),
            ..Sampled::default()
        };
        Self {
            timestamp: jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M:%S +0000 UTC").to_string(),
            gauges: Kept(gauges),
            points: Kept(Vec::new()),
            counters: Kept(counters.iter().map(sampled).collect()),
            // Of an interval without values there is nothing to tell.
            samples: Kept(samples.iter().filter(|s| s.shown.count > 0).map(distribution).collect()),
        }
    }
}

pub(crate) async fn metrics(ctx: Ctx) -> Result<Reply, HttpError> {
    let prometheus = asked(ctx.query.text("format"), ctx.app.options.prometheus)
        .map_err(|(status, why)| HttpError::new(status, why))?;
    let stats = ctx.server().stats();
    let (mut gauges, counters) =
        (gauges(&ctx.server().snapshot(), &stats, &ctx.server().remote_sweeps()), counters(&stats));
    if let Some(metrics) = ctx.app.options.local.as_ref().and_then(|local| local.metrics.as_ref()) {
        gauges.extend(metrics().await);
    }
    gauges.extend(ctx.server().trends().last().map(metrics_of_trend).unwrap_or_default());
    gauges.extend(metrics_of_tls(ctx.app.options.tls.as_ref(), ctx.app.options.store_tls.as_ref()));
    gauges.extend(metrics_of_audit(ctx.app.options.audit.as_ref()));
    if prometheus {
        return Ok(Reply::bytes(PROMETHEUS, text_format(&gauges, &counters, &stats.samples)));
    }
    ctx.plain(&View::of(gauges, &counters, &stats.samples))
}

pub(crate) async fn trends(ctx: Ctx) -> Result<Reply, HttpError> {
    ctx.plain(&ctx.server().trends())
}

#[allow(clippy::cast_precision_loss, reason = "metrics are read as floats; beyond 2^53 the last digits do not matter")]
fn real(n: u64) -> f64 {
    n as f64
}

fn count(n: usize) -> f64 {
    real(u64::try_from(n).unwrap_or(u64::MAX))
}

fn gauges(state: &State, stats: &ServerStats, sweeps: &[RemoteSweep]) -> Vec<Gauge> {
    let mut all = Vec::new();
    let mut add = |name: &str, value: f64, labels: &[(&str, &str)]| {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        all.push(Gauge { name: name.to_owned(), value, labels });
    };
    let ready: usize = stats.broker_ready.values().sum();
    add("nomad.nomad.broker.total_ready", count(ready), &[]);
    add("nomad.nomad.broker.total_unacked", count(stats.broker_unacked), &[]);
    add("nomad.nomad.broker.total_pending", count(stats.broker_pending), &[]);
    add("nomad.nomad.broker.total_waiting", count(stats.broker_waiting), &[]);
    for (kind, n) in &stats.broker_ready {
        add(&format!("nomad.nomad.broker.{kind}.ready"), count(*n), &[]);
    }
    add("nomad.nomad.blocked_evals.total_blocked", count(stats.blocked_evals), &[]);
    add("nomad.nomad.heartbeat.active", count(stats.sessions), &[]);
    add("nomad.nomad.state.latest_index", real(state.latest_index()), &[]);
    for status in [job_status::PENDING, job_status::RUNNING, job_status::DEAD] {
        let n = state.jobs().filter(|j| j.status == status).count();
        add(&format!("nomad.nomad.job_status.{status}"), count(n), &[]);
    }
    for (status, name) in [
        (NodeStatus::Initializing, "initializing"),
        (NodeStatus::Ready, "ready"),
        (NodeStatus::Down, "down"),
        (NodeStatus::Disconnected, "disconnected"),
    ] {
        add("drover.nodes", count(state.nodes().filter(|n| n.status == status).count()), &[("status", name)]);
    }
    for job in state.jobs() {
        let Some(summary) = state.job_summary(&job.key()) else {
            continue;
        };
        for (group, g) in &summary.summary {
            let labels = [
                ("namespace", job.namespace.as_str()),
                ("job", job.id.as_str()),
                ("exported_job", job.id.as_str()),
                ("task_group", group),
            ];
            for (name, n) in [
                ("drover.cluster.queued", g.queued),
                ("complete", g.complete),
                ("failed", g.failed),
                ("running", g.running),
                ("starting", g.starting),
                ("lost", g.lost),
                ("unknown", g.unknown),
            ] {
                add(&format!("nomad.nomad.job_summary.{name}"), real(u64::try_from(n).unwrap_or(0)), &labels);
            }
        }
    }
    let mut remote: BTreeMap<&str, usize> =
        ["intended", "creating", "running", "exited", "gone", "unknown"].map(|s| (s, 0)).into();
    let mut unmanaged = 0;
    let mut handovers = 0;
    for record in state.remote_tasks() {
        *remote.entry(observed_name(&record.observed)).or_default() += 1;
        unmanaged += usize::from(record.manager.is_none());
        handovers += record.handovers;
    }
    for (name, n) in remote {
        add("drover.remote.tasks", count(n), &[("state", name)]);
    }
    add("drover.remote.unmanaged", count(unmanaged), &[]);
    add("drover.recovery.recovering", count(usize::from(state.cluster().recovery.is_some())), &[]);
    add("drover.remote.unbound", count(sweeps.iter().map(|s| s.unbound.len()).sum()), &[]);
    add("drover.remote.providers_unswept", count(sweeps.iter().filter(|s| !s.error.is_empty()).count()), &[]);
    add("drover.remote.handovers", real(handovers), &[]);
    all
}

/// A value of a point of the last hour as a metric, from which a Prometheus gives it back for longer.
pub(crate) struct Drawn {
    /// Its name as a metric.
    pub(crate) name: &'static str,
    get: fn(&Trend) -> f64,
    /// Writes it into a point.
    pub(crate) set: fn(&mut Trend, f64),
}

macro_rules! drawn {
    ($($name:literal $field:ident $kind:ty),+ $(,)?) => { &[$(Drawn {
        name: $name,
        get: |point| real(u64::try_from(point.$field).unwrap_or(0)),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is the nearest number")]
        set: |point, value| point.$field = value.round() as $kind,
    }),+] };
}

/// All of them, but for those that count what came since the point before.
pub(crate) const DRAWN: &[Drawn] = drawn! {
    "drover.cluster.nodes_ready" nodes_ready u64,
    "drover.cluster.allocs_running" allocs_running u64,
    "drover.cluster.cpu_used" cpu_used i64,
    "drover.cluster.cpu_total" cpu_total i64,
    "drover.cluster.memory_used_mb" memory_used_mb i64,
    "drover.cluster.memory_total_mb" memory_total_mb i64,
    "drover.cluster.queued" queued u64,
    "drover.cluster.unmanaged" unmanaged u64,
};

/// Total of allocations that were placed.
pub(crate) const PLACED: &str = "drover.cluster.placed";
/// Total of hand-overs of remote tasks.
pub(crate) const HAND_OVERS: &str = "drover.cluster.hand_overs";

fn metrics_of_trend(point: &Trend) -> Vec<Gauge> {
    let gauge =
        |drawn: &Drawn| Gauge { name: drawn.name.to_owned(), value: (drawn.get)(point), labels: BTreeMap::new() };
    DRAWN.iter().map(gauge).collect()
}

/// The name of a metric as Prometheus has it.
pub(crate) fn prometheus_name(name: &str) -> String {
    name.replace(['.', '-', ' '], "_")
}

fn observed_name(observed: &Observed) -> &'static str {
    match observed {
        Observed::Intended => "intended",
        Observed::Creating => "creating",
        Observed::Running => "running",
        Observed::Exited { .. } => "exited",
        Observed::Gone => "gone",
        Observed::Unknown { .. } => "unknown",
    }
}

/// Totals since the start of the server.
fn counters(stats: &ServerStats) -> [(&'static str, u64); 9] {
    [
        (PLACED, stats.placed),
        (HAND_OVERS, stats.hand_overs),
        ("nomad.nomad.plan.committed", stats.plans_committed),
        ("nomad.nomad.plan.partial", stats.plans_partial),
        ("nomad.client.introduction_violation_num", stats.introduction_violations),
        ("drover.http.panics", stats.handler_panics),
        ("drover.store.commits", stats.commits),
        ("drover.store.syncs", stats.syncs),
        ("drover.store.bytes_written", stats.bytes_written),
    ]
}

/// Prometheus' text format.
fn text_format(gauges: &[Gauge], counters: &[(&'static str, u64)], samples: &[Sample]) -> String {
    let mut by_name: BTreeMap<String, Vec<&Gauge>> = BTreeMap::new();
    for gauge in gauges {
        by_name.entry(prometheus_name(&gauge.name)).or_default().push(gauge);
    }
    let mut out = String::new();
    for (name, gauges) in by_name {
        let _ = writeln!(out, "# HELP {name} {name}\n# TYPE {name} gauge");
        for gauge in gauges {
            out.push_str(&name);
            if !gauge.labels.is_empty() {
                let labels: Vec<String> = gauge
                    .labels
                    .iter()
                    .map(|(k, v)| {
                        format!("{k}=\"{}\"", v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
                    })
                    .collect();
                let _ = write!(out, "{{{}}}", labels.join(","));
            }
            let _ = writeln!(out, " {}", gauge.value);
        }
    }
    for (name, value) in counters {
        let name = prometheus_name(name);
        let _ = writeln!(out, "# HELP {name} {name}\n# TYPE {name} counter\n{name} {value}");
    }
    for sample in samples {
        let (name, count, sum) = (prometheus_name(sample.name), sample.total_count, sample.total_sum);
        let _ = writeln!(out, "# HELP {name} {name}\n# TYPE {name} summary\n{name}_sum {sum}\n{name}_count {count}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_escapes_labels_and_names() {
        let labels = BTreeMap::from([("job".to_owned(), "a\"b\\c\nd".to_owned())]);
        let gauges = [Gauge { name: "nomad.job-x.y".into(), value: 1.5, labels }];
        assert_eq!(
            text_format(
                &gauges,
                &[("a.b", 3)],
                &[Sample { name: "c.d", total_count: 2, total_sum: 1.5, ..Sample::default() }]
            ),
            "# HELP nomad_job_x_y nomad_job_x_y\n# TYPE nomad_job_x_y \
                gauge\nnomad_job_x_y{job=\"a\\\"b\\\\c\\nd\"} 1.5\n\
             # HELP a_b a_b\n# TYPE a_b counter\na_b 3\n\
             # HELP c_d c_d\n# TYPE c_d summary\nc_d_sum 1.5\nc_d_count 2\n"
        );
    }
}
