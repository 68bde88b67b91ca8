//! Variables over the HTTP API: reads, writes with check-and-set, and writes while the server encrypts all variables
//! again with a new root key.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::{
    agent::{Agent, CONNECTIONS, Kind},
    load::{self, Connection, Done, Request},
    measure::{BOUND, f, ms, pss_kib},
    table::{Row, quantile},
};
use crate::local::until;

const VARIABLES: usize = 100_000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);
/// The longest rotation that is waited for.
const ROTATION: Duration = Duration::from_secs(1_800);

fn path(n: usize) -> String {
    format!("bench/{}/{n}", n % 100)
}

fn variable(path: &str, value: &str) -> Value {
    json!({"Path": path, "Items": {"user": "bench", "password": value, "note": "x".repeat(100)}})
}

/// All of it.
pub(crate) fn variables(kind: Kind) -> Result<Vec<Row>> {
    let agent = Agent::start(kind)?;
    let (port, name) = (agent.http_port(), agent.name());
    let before = pss_kib(agent.pid());
    let started = Instant::now();
    load::each(port, 8 * CONNECTIONS, VARIABLES, |connection, n| {
        let path = path(n);
        connection.send(&Request::new("PUT", &format!("/v1/var/{path}"), "", &variable(&path, "first"))).map(drop)
    })?;
    let took = started.elapsed().as_secs_f64();
    let grown = pss_kib(agent.pid()).saturating_sub(before);
    let mut rows = vec![
        Row::new(format!("{VARIABLES} variables written"), name, "/s", vec![f(VARIABLES as u64) / took]),
        Row::new("  memory for each", name, "B", vec![f(grown) * 1024.0 / f(VARIABLES as u64)]),
    ];
    let read = |connection: &mut Connection, client: usize, n: usize| {
        let path = path((n * 31 + client * 997) % VARIABLES);
        connection.send(&Request::new("GET", &format!("/v1/var/{path}"), "", &Value::Null)).map(drop)
    };
    let reads = (0..ROUNDS).map(|_| load::for_a_time(port, ROUND, read)).collect::<Result<Vec<_>>>()?;
    rows.push(Row::new("variables read", name, "/s", reads.iter().map(Done::rate).collect()));
    let checked = Checked::new(&agent)?;
    let writes = (0..ROUNDS)
        .map(|_| load::for_a_time(port, ROUND, |connection, client, _| checked.write(connection, client)))
        .collect::<Result<Vec<_>>>()?;
    rows.push(Row::new("variables written with check-and-set", name, "/s", writes.iter().map(Done::rate).collect()));
    rows.push(Row::new("  p99", name, "ms", writes.iter().filter_map(p99).collect()));
    let (time, during) = rotate(&agent, &checked)?;
    rows.push(Row::new(format!("{VARIABLES} variables encrypted again"), name, "s", vec![time.as_secs_f64()]));
    rows.push(Row::new("  written meanwhile", name, "/s", vec![during.rate()]));
    rows.push(Row::new("  p99", name, "ms", p99(&during).into_iter().collect()));
    Ok(rows)
}

fn p99(done: &Done) -> Option<f64> {
    quantile(&done.took.iter().map(|took| ms(*took)).collect::<Vec<_>>(), 0.99)
}

/// A variable for each connection, and the index that its next write names.
struct Checked(Vec<AtomicU64>);

impl Checked {
    fn new(agent: &Agent) -> Result<Self> {
        let mut connection = Connection::open(agent.http_port())?;
        let all = (0..CONNECTIONS).map(|client| {
            let path = format!("checked/{client}");
            let request = Request::new("PUT", &format!("/v1/var/{path}"), "", &variable(&path, "first"));
            index(connection.send(&request)?).map(AtomicU64::new)
        });
        all.collect::<Result<_>>().map(Self)
    }

    fn write(&self, connection: &mut Connection, client: usize) -> Result<()> {
        let (path, cas) = (format!("checked/{client}"), self.0[client].load(Ordering::Relaxed));
        let url = format!("/v1/var/{path}?cas={cas}");
        let answer = connection.send(&Request::new("PUT", &url, "", &variable(&path, &cas.to_string())))?;
        self.0[client].store(index(answer)?, Ordering::Relaxed);
        Ok(())
    }
}

fn index(answer: &[u8]) -> Result<u64> {
    let variable: Value = serde_json::from_slice(answer)?;
    variable["ModifyIndex"].as_u64().context("a variable without an index")
}

/// Rotates the root key, all variables included; how long it takes, and the writes meanwhile.
fn rotate(agent: &Agent, checked: &Checked) -> Result<(Duration, Done)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writes = scope.spawn(|| {
            let goes_on = |_| !over.load(Ordering::Relaxed);
            let write = |connection: &mut Connection, client: usize, _| checked.write(connection, client);
            load::while_it_lasts(agent.http_port(), CONNECTIONS, goes_on, write)
        });
        let started = Instant::now();
        let rotated = agent.put("/v1/operator/keyring/rotate?full=true", &Value::Null).and_then(|_| {
            until("all variables under the new key", ROTATION.max(BOUND), || {
                let keys = agent.get("/v1/operator/keyring/keys")?;
                let busy = |key: &Value| key["State"] == "rekeying";
                Ok((!keys.as_array().into_iter().flatten().any(busy)).then(|| started.elapsed()))
            })
        });
        over.store(true, Ordering::Relaxed);
        let during = writes.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok((rotated?, during))
    })
}
