//! Instances of remote tasks that no record knows: servers from the past find them, and people decide.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, ensure};

use super::{
    super::{
        cluster::{self, Agent, Role},
        job::Job,
    },
    kit::{in_runtime, running},
    page::Page,
};
use crate::local::{self, BOUND, until};

const SLOT: &str = "default/far.g[0]/t";

pub(super) fn orphans(page: &mut Page) -> Result<()> {
    in_runtime("orphans", |dir| decided(page, dir))
}

fn decided(page: &mut Page, dir: &Path) -> Result<()> {
    let plugin =
        format!("plugin \"remote_exec\" {{\n  config {{\n    transport = \"local\"\n    root = {dir:?}\n  }}\n}}\n");
    let mut server = Agent::start_as("web-orphans", Role::Server, &[], cluster::SHORT_LEASE)?;
    let mut node = Agent::start_as("web-adopts", Role::Node(&server), &[], &plugin)?;
    server.until_healthy(&["remote_exec"], 1)?;
    let of_task = |(pid, line): (u32, String)| (line == "/bin/sleep 71026").then_some(pid);
    let pids = || local::processes_of(dir).into_iter().filter_map(of_task).collect::<Vec<_>>();
    let job = || Job::command("far", "service", "remote_exec", "/bin/sleep", &["71026"]).undeployed().body();

    // The servers come from a backup that is older than the job, and the node has lost its memory.
    let (data, backup) = (server.dir().join("data/server"), dir.join("backup"));
    server.crash()?;
    copy(&data, &backup)?;
    server.restart()?;
    server.until_healthy(&["remote_exec"], 1)?;
    server.submit(&job())?;
    running(&server, "far")?;
    let first = pids();
    ensure!(first.len() == 1, "{first:?}");
    server.crash()?;
    node.crash()?;
    fs::remove_dir_all(&data)?;
    copy(&backup, &data)?;
    for file in ["node.sqlite", "node.sqlite-wal"] {
        drop(fs::remove_file(node.dir().join("data/client").join(file)));
    }
    server.restart()?;
    node.restart()?;
    server.until_healthy(&["remote_exec"], 1)?;
    page.open(&format!("{}/ui/remote", server.address()))?;
    page.shows("A runtime has them, and no record knows them.")?;
    page.shows("The runtimes were last asked for orphaned instances")?;
    page.shows(SLOT)?;
    // The job comes again, and the person says that this is its instance.
    server.submit(&job())?;
    page.click("Adopt")?;
    page.shows(&format!("as the instance of {SLOT}? It goes on."))?;
    page.click("Adopt")?;
    running(&server, "far")?;
    page.hides("A runtime has them")?;
    ensure!(pids() == first, "it is the same process: {first:?}, {:?}", pids());

    // A record is deleted while nobody manages the instance, and no sweep comes, as one has just been: the slot gets
    // another one.
    cluster::drover(&server.address(), &["remote", "sweep"])?;
    node.crash()?;
    page.until("no manager", "document.querySelector('tbody')?.innerText.includes('unmanaged')")?;
    page.click(SLOT)?;
    page.click("Forget the record")?;
    page.shows("runs on as an orphan")?;
    page.fill("What to type", SLOT)?;
    page.click("Forget the record")?;
    page.until("the list again", "location.pathname === '/ui/remote'")?;
    node.restart()?;
    until("a second instance", BOUND, || Ok((pids().len() == 2).then_some(())))?;
    cluster::drover(&server.address(), &["remote", "sweep"])?;
    page.until(
        "a duplicate that is counted",
        "[...document.querySelectorAll('.count')].some((e) => e.innerText.replace(/\\s+/g, ' ') === '1 duplicates')",
    )?;
    page.keep("duplicates-of-remote-tasks")?;
    page.click(SLOT)?;
    page.shows("the work may be done twice")?;
    page.keep("two-instances-of-a-slot")?;
    page.document("duplicates")?;
    page.click("Stop")?;
    page.shows("Its work ends.")?;
    page.click("Stop")?;
    page.hides("the work may be done twice")?;
    let left = until("the end of the first", BOUND, || Ok(Some(pids()).filter(|left| left.len() == 1)))?;
    ensure!(left != first, "the instance of the record goes on: {first:?}, {left:?}");
    server.delete("/v1/job/far")?;
    until("the end of the other", BOUND, || Ok(pids().is_empty().then_some(())))
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
