//! The demo that goes on while somebody watches.

use std::{
    io::{BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::{super::cluster, page::Page};
use crate::local;

pub(super) fn demo(page: &mut Page) -> Result<()> {
    let program = cluster::program();
    let mut child = Command::new(program)
        .args(["demo", "-ui"])
        // No browser is opened on whatever screen there is.
        .env("PATH", "/nonexistent")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    let watched = watched(page, &mut lines);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a pid")?;
    kill_process(pid, Signal::INT)?;
    lines.map_while(Result::ok).for_each(drop);
    let status = child.wait()?;
    let dir = watched?;
    ensure!(status.success(), "the demo held, and it says {status}");
    ensure!(!dir.exists() && local::processes_of(&dir).is_empty(), "the demo has left something in {}", dir.display());
    Ok(())
}

/// Watches the demo until a manager was killed after its story; its directory.
fn watched(page: &mut Page, lines: &mut impl Iterator<Item = std::io::Result<String>>) -> Result<PathBuf> {
    let mut until = |part: &str| -> Result<String> {
        let mut texts = lines.by_ref().map_while(Result::ok);
        texts.find(|line| line.contains(part)).with_context(|| format!("the demo does not say {part:?}"))
    };
    let dir = until("cluster in ")?.rsplit(' ').next().unwrap_or_default().into();
    let url = until("open it in a browser: ")?.rsplit(' ').next().unwrap_or_default().to_owned();
    page.open(&url)?;
    let bar = "document.querySelector('svg .onbar').textContent.split(' ')[1]";
    page.until("the bar", bar)?;
    let before = page.eval(bar)?;
    until("kill -9 node-")?;
    until("which manages the task")?;
    until("starts again")?;
    page.until("more than four managers", "document.querySelectorAll('.lane').length > 4")?;
    ensure!(page.eval(bar)? == before, "the instance is the same");
    Ok(dir)
}
