//! What access control costs: the same requests to two agents in turn, one open, one with 1,000 policies and 100,000
//! tokens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    agent::{Agent, CONNECTIONS, Kind},
    load::{self, Connection, Request},
    measure::{self, f, ms, own_cpu_ticks, pss_kib},
    table::{Row, quantile},
};

const POLICIES: usize = 1_000;
const TOKENS: usize = 100_000;
/// Tokens that the requests come with, in turn: more than a decision is remembered for by chance.
const USED: usize = 1_000;
/// Pairs of measurements, one of each agent after the other: many short ones. What else the machine does comes and goes
/// within seconds, takes up to a third of a round, and should meet both agents alike.
const ROUNDS: usize = 120;
const ROUND: Duration = Duration::from_millis(250);
/// Microseconds of a clock tick, as the kernel counts CPU time.
const TICK_US: f64 = 10_000.0;

/// What is asked.
struct Workload {
    name: &'static str,
    /// The request with this secret; `n` numbers the requests.
    request: fn(secret: &str, n: usize) -> Request,
}

const WORKLOADS: &[Workload] = &[
    Workload { name: "one job", request: |secret, _| Request::new("GET", "/v1/job/read", secret, &Value::Null) },
    Workload { name: "20 jobs", request: |secret, _| Request::new("GET", "/v1/jobs", secret, &Value::Null) },
    Workload {
        name: "a job written",
        request: |secret, n| Request::new("PUT", "/v1/jobs", secret, &job(&format!("write{}", n % 16), n)),
    },
];

/// A job without tasks to run; `n` makes it another version.
fn job(id: &str, n: usize) -> Value {
    let mut job = measure::job_of(measure::RAW_EXEC, id, "service", 0, "/bin/true", &[]);
    job["Job"]["Meta"] = json!({"n": n.to_string()});
    job
}

/// All of it.
pub(crate) fn access(kind: Kind) -> Result<Vec<Row>> {
    let mut open = Agent::start(kind.clone())?;
    let mut closed = Agent::start_closed(kind)?;
    let (mut rows, secrets) = fill(&closed)?;
    for (agent, secret) in [(&open, ""), (&closed, closed.secret())] {
        let mut connection = Connection::open(agent.http_port())?;
        for n in 0..19 {
            connection.send(&Request::new("PUT", "/v1/jobs", secret, &job(&format!("other{n}"), n)))?;
        }
        connection.send(&Request::new("PUT", "/v1/jobs", secret, &job("read", 0)))?;
    }
    // An agent that has just taken 100,000 writes answers longer lists more slowly, whatever they are asked with. Both
    // go on as agents that have read their state: only what requests cost differs.
    for agent in [&mut open, &mut closed] {
        agent.crash_and_restart()?;
        agent.wait_until_ready()?;
    }
    for workload in WORKLOADS {
        rows.extend(compare(&open, &closed, &secrets, workload)?);
    }
    Ok(rows)
}

/// Policies and tokens, and the secrets of those tokens that are used.
fn fill(closed: &Agent) -> Result<(Vec<Row>, Vec<String>)> {
    let (port, secret) = (closed.http_port(), closed.secret());
    load::each(port, CONNECTIONS, POLICIES, |connection, n| {
        let rules = format!(
            "namespace \"default\" {{\n  policy = \"write\"\n}}\nnamespace \"team-{n}-*\" {{\n  policy = \"read\"\n}}\n"
        );
        let policy = json!({"Name": format!("policy-{n}"), "Rules": rules});
        connection.send(&Request::new("PUT", &format!("/v1/acl/policy/policy-{n}"), secret, &policy)).map(drop)
    })?;
    let before = pss_kib(closed.pid());
    let started = Instant::now();
    let secrets = std::sync::Mutex::new(Vec::new());
    load::each(port, 4 * CONNECTIONS, TOKENS, |connection, n| {
        let policies: Vec<String> = (0..3).map(|k| format!("policy-{}", (n * 7 + k * 13) % POLICIES)).collect();
        let token = json!({"Name": format!("token {n}"), "Type": "client", "Policies": policies});
        let answer = connection.send(&Request::new("PUT", "/v1/acl/token", secret, &token))?;
        if n % (TOKENS / USED) == 0 {
            let token: Value = serde_json::from_slice(answer)?;
            let secret = token["SecretID"].as_str().context("a token without a secret")?;
            secrets.lock().map_err(|_| anyhow::anyhow!("another client failed"))?.push(secret.to_owned());
        }
        Ok(())
    })?;
    let took = started.elapsed().as_secs_f64();
    let grown = pss_kib(closed.pid()).saturating_sub(before);
    let name = closed.name();
    let rows = vec![
        Row::new(format!("{TOKENS} tokens written"), name, "/s", vec![f(TOKENS as u64) / took]),
        Row::new("  memory for each token", name, "B", vec![f(grown) * 1024.0 / f(TOKENS as u64)]),
    ];
    let secrets = secrets.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok((rows, secrets))
}

/// One workload on both in turn.
fn compare(open: &Agent, closed: &Agent, secrets: &[String], workload: &Workload) -> Result<Vec<Row>> {
    let (mut rates, mut latencies, mut cpu) =
        ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    // Made before: what the client does for them would count for one more than for the other.
    let requests: Vec<Vec<Request>> = [&[String::new()][..], secrets]
        .into_iter()
        .map(|of| (0..USED).map(|n| (workload.request)(&of[n % of.len()], n)).collect())
        .collect();
    // The first round of each is not measured: it fills what is remembered.
    for round in 0..=ROUNDS {
        let mut order = [(0, open), (1, closed)];
        if round % 2 == 1 {
            order.reverse();
        }
        for (which, agent) in order {
            let send = |connection: &mut Connection, client: usize, n: usize| {
                connection.send(&requests[which][(n * CONNECTIONS + client) % USED]).map(drop)
            };
            let before = own_cpu_ticks(agent.pid());
            let together = load::for_a_time(agent.http_port(), ROUND, send)?;
            let used = own_cpu_ticks(agent.pid()) - before;
            let alone = load::while_it_lasts(agent.http_port(), 1, |started| started.elapsed() < ROUND, send)?;
            if round > 0 {
                rates[which].push(together.rate());
                cpu[which].push(f(used) * TICK_US / f(together.took.len() as u64));
                let took: Vec<f64> = alone.took.into_iter().map(|took| ms(took) * 1e3).collect();
                latencies[which].push(quantile(&took, 0.5).context("no request was answered")?);
            }
        }
    }
    let paired = |of: &[Vec<f64>; 2], compare: fn(f64, f64) -> f64| -> Vec<f64> {
        of[0].iter().zip(&of[1]).map(|(open, closed)| compare(*open, *closed)).collect()
    };
    let name = closed.name();
    let cost = paired(&rates, |open, closed| (open - closed) / open * 100.0);
    let more = paired(&latencies, |open, closed| closed - open);
    // Whatever else the machine does meanwhile takes none of it.
    let more_cpu = paired(&cpu, |open, closed| (closed - open) / open * 100.0);
    let [open_cpu, closed_cpu] = cpu;
    let [open_rates, closed_rates] = rates;
    let [open_latencies, closed_latencies] = latencies;
    let row = |what: &str, unit, samples| Row::new(format!("{}: {what}", workload.name), name, unit, samples);
    Ok(vec![
        row("requests, open", "/s", open_rates),
        row("requests, ACLs on", "/s", closed_rates),
        row("requests that ACLs cost", "%", cost),
        row("CPU of the agent for each, open", "µs", open_cpu),
        row("CPU of the agent for each, ACLs on", "µs", closed_cpu),
        row("CPU that ACLs cost", "%", more_cpu),
        row("p50, open", "µs", open_latencies),
        row("p50, ACLs on", "µs", closed_latencies),
        row("p50 that ACLs add", "µs", more),
    ])
}
