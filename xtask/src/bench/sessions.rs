//! `alloc exec` as a client of the HTTP API sees it: from the request to the exit code.

use std::{
    net::TcpStream,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use testkit::Unbroken;
use tungstenite::Message;

use super::{
    agent::{Agent, Kind},
    measure::{self, BOUND, EXEC, RAW_EXEC, ms},
    table::Row,
};
use crate::local::until;

/// `true` in a running task, one after another.
pub(crate) fn sessions(kind: Kind) -> Result<Vec<Row>> {
    const RUNS: usize = 200;
    let mut rows = Vec::new();
    for driver in [RAW_EXEC, EXEC] {
        let agent = Agent::start(kind.clone())?;
        agent.wait_for_driver(driver)?;
        agent.put("/v1/jobs", &measure::job_of(driver, "joined", "service", 1, "/bin/sleep", &["3600"]))?;
        let id = until("a running task", BOUND, || agent.alloc("joined", "running"))?;
        let took = (0..RUNS).map(|_| session(&agent, &id).map(ms)).collect::<Result<Vec<f64>>>()?;
        rows.push(Row::new(format!("alloc exec true: {driver}"), agent.name(), "ms", took));
    }
    Ok(rows)
}

/// One session on a connection of its own: from the request until the exit code is there.
fn session(agent: &Agent, alloc: &str) -> Result<Duration> {
    let address = format!("127.0.0.1:{}", agent.http_port());
    let url =
        format!("ws://{address}/v1/client/allocation/{alloc}/exec?task=t&tty=false&command=%5B%22%2Fbin%2Ftrue%22%5D");
    let asked = Instant::now();
    let stream = TcpStream::connect(&address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(BOUND))?;
    let (mut socket, _) = tungstenite::client(url, Unbroken(stream)).context("the upgrade to a websocket")?;
    loop {
        let Message::Text(text) = socket.read().context("a session that has not told its exit code")? else {
            continue;
        };
        let frame: Value = serde_json::from_str(&text)?;
        if frame["exited"] == true {
            let took = asked.elapsed();
            ensure!(frame["result"]["exit_code"].as_i64().unwrap_or(0) == 0, "the session ended with {frame}");
            drop(socket.close(None));
            return Ok(took);
        }
    }
}
