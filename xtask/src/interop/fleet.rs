//! The simulated nodes: one process, which is asked and told by lines.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::Agent;
use crate::local::until;

/// The running nodes; they end when this is dropped.
pub(crate) struct Nodes {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    many: u64,
}

/// What they have seen; see `xtask/fleet/src/main.rs`.
pub(crate) struct Stats {
    pub(crate) welcome: u64,
    pub(crate) stored: u64,
    pub(crate) lapses: u64,
    pub(crate) broken: u64,
    pub(crate) slowest_ms: u64,
    pub(crate) why: String,
}

impl Drop for Nodes {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Nodes {
    /// So many nodes of that server.
    pub(crate) fn start(program: &Path, server: &Agent, many: usize) -> Result<Self> {
        let mut child = Command::new(program)
            .args([format!("127.0.0.1:{}", server.rpc_port()), "of-interop".to_owned(), many.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        let orders = child.stdin.take().context("no input of the nodes")?;
        let answers = BufReader::new(child.stdout.take().context("no output of the nodes")?);
        Ok(Self { child, orders, answers, many: many as u64 })
    }

    fn ask(&mut self, order: &str) -> Result<Value> {
        writeln!(self.orders, "{order}").context("the nodes take no order")?;
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the nodes have ended");
        Ok(serde_json::from_str(&line)?)
    }

    /// What they have seen so far.
    pub(crate) fn stats(&mut self) -> Result<Stats> {
        let told = self.ask("stats")?;
        let number = |name: &str| told[name].as_u64().unwrap_or(0);
        Ok(Stats {
            welcome: number("welcome"),
            stored: number("stored"),
            lapses: number("lapses"),
            broken: number("broken"),
            slowest_ms: number("slowest_ms"),
            why: told["why"].as_str().unwrap_or_default().to_owned(),
        })
    }

    /// Waits until each of them has a session; how long that took.
    pub(crate) fn until_all_are_welcome(&mut self, bound: Duration) -> Result<Duration> {
        let begun = Instant::now();
        until("a session of every node", bound, || {
            thread::sleep(Duration::from_millis(50));
            let stats = self.stats()?;
            if stats.welcome >= self.many { Ok(Some(())) } else { Ok(None) }
        })?;
        Ok(begun.elapsed())
    }

    /// Waits until they have nothing new to say; the reports that the server has stored until then.
    pub(crate) fn quiet(&mut self) -> Result<u64> {
        let mut stored = self.stats()?.stored;
        loop {
            thread::sleep(Duration::from_secs(2));
            let now = self.stats()?.stored;
            if now == stored {
                return Ok(now);
            }
            stored = now;
        }
    }

    /// Chooses so many of them, to be lost; their ids.
    pub(crate) fn choose(&mut self, many: usize) -> Result<Vec<String>> {
        let ids = self.ask(&format!("choose {many}"))?;
        Ok(ids.as_array().into_iter().flatten().filter_map(|id| id.as_str().map(str::to_owned)).collect())
    }

    /// Loses the chosen ones without a word.
    pub(crate) fn lose(&mut self) -> Result<()> {
        let lost = self.ask("lose")?;
        self.many -= lost.as_u64().context("the fleet does not tell how many are lost")?;
        Ok(())
    }
}
