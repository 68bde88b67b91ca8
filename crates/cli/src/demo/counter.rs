//! The witnesses of the demo: a process, seen from outside, and the instance's counter, followed through the API across
//! every hand-over.

use std::{fs, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use api::call;
use tokio::{sync::watch, task::JoinHandle};

use crate::conn::Conn;

/// Identity of a process that survives pid reuse: the pid and the kernel's start time of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// Pid.
    pub(crate) pid: i32,
    start_ticks: u64,
}

impl Process {
    /// The process of that pid, when there is one.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        // Field 3 (state) is the first after the name; 22 is the start time.
        let state = fields.next()?;
        if state == "Z" {
            return None;
        }
        Some(Self { pid, start_ticks: fields.nth(18)?.parse().ok()? })
    }
}

/// Follows the counter's log through the API, with a cursor, over whichever node manages it.
pub(crate) struct Follower {
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

/// What the follower has read so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// The last number.
    pub(crate) last: u64,
    /// The first thing that was wrong with the sequence.
    pub(crate) fault: Option<Arc<str>>,
}

impl Follower {
    /// Begins to follow.
    pub(crate) fn start(conn: Conn) -> Self {
        let (sender, seen) = watch::channel(Seen::default());
        let task = tokio::spawn(async move {
            let mut offset = 0_u64;
            let mut partial = Vec::new();
            loop {
                // An error here is a hand-over: no node manages the task at the moment, or the one that did is gone.
                // The cursor is ours.
                if let Err(error) = follow_once(&conn, &mut offset, &mut partial, &sender).await {
                    tracing::debug!(error = format!("{error:#}"), offset, "log follower reconnects");
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        Self { seen, task }
    }
    /// What has been read so far.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }
    /// Waits until the counter has reached a number.
    pub(crate) async fn reaches(&mut self, number: u64, bound: Duration) -> Result<()> {
        tokio::time::timeout(bound, self.seen.wait_for(|s| s.last >= number || s.fault.is_some()))
            .await
            .with_context(|| format!("the log did not reach line {number} within {} s", bound.as_secs()))??;
        Ok(())
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow_once(conn: &Conn, offset: &mut u64, partial: &mut Vec<u8>, sender: &watch::Sender<Seen>) -> Result<()> {
    let allocs = conn.ask(call::job_allocations("counter")).await?;
    let alloc = allocs
        .into_iter()
        .filter(|a| !a.terminal())
        .max_by_key(|a| a.create_index)
        .context("no allocation manages the counter now")?;
    let logs = call::alloc_files("logs", alloc.id)
        .with("task", "count")
        .with("type", "stdout")
        .with("plain", true)
        .with("follow", true);
    let mut stream = conn.stream(logs.with("origin", "start").with("offset", *offset)).await?;
    // Between two chunks: long enough for a quiet machine, short enough to notice a node that is gone without a
    // goodbye.
    while let Some(chunk) = tokio::time::timeout(Duration::from_secs(1), stream.next())
        .await
        .context("the log has stood still for a second")??
    {
        *offset += chunk.len() as u64;
        for byte in chunk {
            if byte != b'\n' {
                partial.push(byte);
                continue;
            }
            let text = String::from_utf8_lossy(partial).into_owned();
            partial.clear();
            sender.send_modify(|seen| match text.parse::<u64>() {
                Ok(n) if n == seen.last + 1 => seen.last = n,
                _ if seen.fault.is_some() => {}
                _ => seen.fault = Some(format!("after line {} came {text:?}", seen.last).into()),
            });
        }
    }
    Ok(())
}
