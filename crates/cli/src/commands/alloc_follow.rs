//! Following a task's output. That of a remote task goes on whichever node manages it: positions are absolute, so
//! nothing is missing and nothing comes twice when management moves.

use std::{io::Write, time::Duration};

use anyhow::Result;
use api::call::{self, Call, Raw};
use model::{AllocId, Allocation, IncarnationId, remote::slot_of};

use crate::{conn::Conn, output};

/// Between two looks at who manages the task now.
const PAUSE: Duration = Duration::from_millis(300);

/// Which output, from where on.
#[derive(Clone, Debug)]
pub(crate) struct From<'a> {
    pub(crate) task: &'a str,
    pub(crate) kind: &'a str,
    pub(crate) origin: &'static str,
    pub(crate) offset: u64,
    /// It is standard error beside standard output, and goes to ours. Then the other one tells who manages the task.
    pub(crate) to_stderr: bool,
}

impl From<'_> {
    /// Prints what has come.
    pub(crate) fn write(&self, data: &[u8]) {
        if self.to_stderr {
            // Nobody may be reading our standard error; the rest is not worth less for it.
            let _ = std::io::stderr().write_all(data);
        } else {
            output::bytes(data);
        }
    }
    fn tell(&self, text: &str) {
        if !self.to_stderr {
            output::note(text);
        }
    }
}

/// Where frames of it are read.
pub(crate) fn call(alloc: AllocId, from: &From<'_>, follow: bool) -> Call<Raw> {
    let From { task, kind, origin, offset, .. } = from;
    call::alloc_files("logs", alloc)
        .with("task", task)
        .with("type", kind)
        .with("follow", follow)
        .with("origin", origin)
        .with("offset", offset)
}

/// Prints what comes until the task has ended.
pub(crate) async fn follow(conn: &Conn, alloc: &Allocation, from: From<'_>) -> Result<()> {
    let detail = conn.ask(call::alloc(alloc.id)).await?;
    let remote = detail.resources.tasks.get(from.task).is_some_and(|t| t.remote);
    let slot = slot_of(alloc, &std::sync::Arc::from(from.task)).to_string();
    let instance = detail.extra.remote_tasks.iter().find(|r| r.extra.slot_name == slot).map(|r| r.incarnation);
    let mut from = from;
    let mut at = alloc.id;
    let mut told = false;
    loop {
        let read = read(conn, at, &mut from).await;
        let Some(instance) = instance.filter(|_| remote) else {
            return read;
        };
        match next(conn, &slot, instance, at).await {
            // Whoever can say is away as well: asked again.
            Err(_) => {}
            Ok(Next::Ended) => return read,
            Ok(Next::Here { ended: true }) if read.is_ok() => return Ok(()),
            Ok(Next::Here { .. }) => {}
            Ok(Next::At(alloc, node)) => {
                at = alloc;
                told = false;
                from.tell(&format!("[task {} is managed by {node} now]", from.task));
                continue;
            }
            Ok(Next::Nobody) if !told => {
                told = true;
                from.tell(&format!("[task {} is managed by no node at present; it runs on]", from.task));
            }
            Ok(Next::Nobody) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One stream until it ends; where it has come to is kept.
async fn read(conn: &Conn, alloc: AllocId, from: &mut From<'_>) -> Result<()> {
    let mut frames = conn.frames(call(alloc, from, true)).await?;
    while let Some(frame) = frames.next().await? {
        if !frame.data.is_empty() {
            from.write(&frame.data);
            (from.origin, from.offset) = ("start", u64::try_from(frame.offset).unwrap_or(0));
        }
    }
    Ok(())
}

enum Next {
    /// The instance has ended and somebody else's output would follow.
    Ended,
    /// The same allocation has it still.
    Here { ended: bool },
    /// Another allocation has it, on that node.
    At(AllocId, String),
    /// No node manages it.
    Nobody,
}

async fn next(conn: &Conn, slot: &str, instance: IncarnationId, at: AllocId) -> Result<Next> {
    let found = conn.ask(call::remote_tasks().in_namespace("*").with("prefix", slot)).await?;
    let Some(record) = found.into_iter().find(|r| r.extra.slot_name == slot).filter(|r| r.incarnation == instance)
    else {
        return Ok(Next::Ended);
    };
    Ok(match &record.manager {
        Some(m) if m.alloc_id == at || m.alloc_id.is_nil() => Next::Here { ended: record.observed.ended() },
        Some(m) => Next::At(m.alloc_id, record.extra.manager_name.clone()),
        None if record.observed.ended() => Next::Ended,
        None => Next::Nobody,
    })
}

/// The last `n` lines; a last line without an end counts.
pub(crate) fn last_lines(text: &[u8], n: u64) -> &[u8] {
    let body = text.strip_suffix(b"\n").unwrap_or(text);
    let mut seen = 0;
    for (i, byte) in body.iter().enumerate().rev() {
        if *byte == b'\n' {
            seen += 1;
            if seen == n {
                return &text[i + 1..];
            }
        }
    }
    if n == 0 { &[] } else { text }
}
