//! States from the past, and a server that stands still.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{
    fault::Fault,
    world::{BOUND, Spec, World, driver},
};
use crate::{
    local::{signal, until},
    process::Run,
};

pub(super) const FAULTS: &[Fault] = &[
    Fault {
        name: "server-restored",
        what: "the server's directory is replaced by a copy from before some of the running tasks",
        would_show: "tasks that are ended, doubled or forgotten",
        run: server_restored,
    },
    Fault {
        name: "server-stopped",
        what: "SIGSTOP of the server for more than two leases while tasks run and one ends",
        would_show: "healthy tasks that are replaced, an exit code that nobody kept",
        run: server_stopped,
    },
    Fault {
        name: "node-restored",
        what: "the node's records are replaced by a copy from before some of the running tasks",
        would_show: "a task that is lost, a second instance beside the one that nobody knows",
        run: node_restored,
    },
];

/// Longer than two leases of a server that is told nothing else, with what it waits beyond them.
const TWO_LEASES: Duration = Duration::from_secs(25);

/// A copy of a directory that nobody writes to.
fn copy(from: &Path, to: &Path) -> Result<PathBuf> {
    if to.exists() {
        // Of a run that did not come to its end.
        fs::remove_dir_all(to).with_context(|| format!("remove {}", to.display()))?;
    }
    Run::new("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]).run()?;
    Ok(to.to_owned())
}

fn replace(dir: &Path, by: &Path) -> Result<()> {
    fs::remove_dir_all(dir).with_context(|| format!("remove {}", dir.display()))?;
    Ok(fs::rename(by, dir)?)
}

fn server_restored(world: &mut World, n: usize) -> Result<()> {
    let (known, first) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let dir = world.server.dir().join("data/server");
    world.server.stop()?;
    let old = copy(&dir, &world.server.dir().join("copy"))?;
    world.server.restart()?;
    world.wait_for_node()?;
    let (late, second) = world.start_task(&Spec::endless().driver(driver(n + 1)))?;
    // In turn: it runs on, or has ended by the time that the servers ask. An ended task that they do not know says
    // something of a batch job only.
    let early = n % 2 == 1;
    let (ends, _) = world.start_task(&Spec { batch: early, ..Spec::until_go(19).driver(driver(n)) })?;
    if early {
        world.go(&ends)?;
        std::thread::sleep(Duration::from_millis(u64::try_from(n * 37 % 160)?));
    }
    world.server.crash()?;
    replace(&dir, &old)?;
    world.server.restart()?;
    let recovering =
        |world: &World| Ok::<_, anyhow::Error>(world.server.get("/v1/operator/recovery")?["Recovering"] == true);
    until("the beginning of the recovery", BOUND, || Ok(recovering(world)?.then_some(())))?;
    excuse_the_gone(world)?;
    until("the end of the recovery", BOUND, || Ok((!recovering(world)?).then_some(())))?;
    world.wait_for_node()?;
    world.must_run_on(&known, first)?;
    world.must_run_on(&late, second)?;
    if !early {
        world.go(&ends)?;
    }
    world.must_end_with(&ends, 19)?;
    world.must_not_be_doubled(&ends, 1)
}

/// Excuses the nodes of worlds that have ended: the copy knows them, and the recovery would wait for them until a
/// person says that they are gone.
fn excuse_the_gone(world: &World) -> Result<()> {
    let own = world.node_id()?;
    let view = world.server.get("/v1/operator/recovery")?;
    for node in view["WaitingFor"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|node| node["ID"].as_str())
        .filter(|id| *id != own)
    {
        let (status, said) =
            world.server.put_text(&format!("/v1/operator/recovery/excuse/{node}"), &serde_json::json!({}))?;
        anyhow::ensure!(status == 200, "node {node} is not excused: {status} {said}");
    }
    Ok(())
}

fn server_stopped(world: &mut World, n: usize) -> Result<()> {
    let (stays, process) = world.start_task(&Spec::endless().driver(driver(n)))?;
    let (ends, _) = world.start_task(&Spec::until_go(23).driver(driver(n + 1)))?;
    let go = world.alloc_dir(&ends)?.join("alloc/data/go");
    let pid = world.server.pid();
    signal(pid, Signal::STOP)?;
    std::thread::sleep(TWO_LEASES / 2);
    let noted = fs::write(go, "");
    std::thread::sleep(TWO_LEASES / 2);
    signal(pid, Signal::CONT)?;
    noted?;
    world.wait_for_node()?;
    world.must_run_on(&stays, process)?;
    world.must_end_with(&ends, 23)?;
    world.must_not_be_doubled(&ends, 1)
}

fn node_restored(world: &mut World, n: usize) -> Result<()> {
    let (known, first) = world.start_task(&Spec::endless().driver(driver(n)))?;
    world.node.stop()?;
    let dir = world.state_dir().to_owned();
    let old = copy(&dir, &dir.with_extension("copy"))?;
    world.restart_node()?;
    world.wait_for_node()?;
    let (late, second) = world.start_task(&Spec::endless().driver(driver(n + 1)).restarts(2))?;
    std::thread::sleep(Duration::from_millis(u64::try_from(n * 53 % 400)?));
    world.node.crash()?;
    world.kill_plugins()?;
    replace(&dir, &old)?;
    world.restart_node()?;
    world.wait_for_node()?;
    world.must_run_on(&known, first)?;
    // The record to find it by is lost: it is ended, and started once more.
    until("the end of what no record knows", BOUND, || Ok((!second.is_alive()).then_some(())))?;
    until("its successor", BOUND, || Ok((world.instances(&late).len() == 1).then_some(())))?;
    world.running(&late)?;
    world.must_not_be_doubled(&late, 2)
}
