//! `cargo xtask chaos remote`: remote tasks on real runtimes while everything around them dies, is cut off, freezes, is
//! drained and edited; a seed decides what happens. What must be true is read from the runtimes: at every instant no
//! slot has two live instances and none ends without a cause; in the end exactly what was asked for lives, batches have
//! run once, and after the last stop nothing is left.

mod clusters;
mod faults;
mod net;
mod truth;
mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::{faults::Troubles, net::Net, world::World};
use super::{dice::Dice, regressions};
use crate::{
    builds,
    interop::{dockerd, sshd},
    local::until,
    packages::{self, Skip, Wanted},
};

/// How long a short run is in trouble.
const SHORT: Duration = Duration::from_secs(25);
const USUAL: Duration = Duration::from_secs(15 * 60);
/// After so much trouble everything heals once: what has gone wrong is told near its cause.
const ROUND: Duration = Duration::from_secs(60);
/// Everything has healed: so soon all is as it was asked for.
const SETTLED: Duration = Duration::from_secs(120);
/// The same with clusters: Slurm starts jobs late on a busy machine, and takes half a minute to see what it has lost.
const CLUSTERS_SETTLED: Duration = Duration::from_secs(240);
/// And it stays so.
const QUIET: Duration = Duration::from_secs(3);

/// `chaos remote [--for DURATION | --minutes N] [--seed S] [--short] [--clusters]`.
pub(super) fn run(args: &[&str]) -> Result<()> {
    let with_clusters = args.contains(&"--clusters");
    let args: Vec<&str> = args.iter().copied().filter(|arg| *arg != "--clusters").collect();
    let (length, seed) = super::asked("remote", &args, (USUAL, SHORT), crate::local::seed())?;
    builds::build(&["drover"])?;
    need_hosts()?;
    let engine = dockerd::need(&[Wanted::new("openssl", "openssl")]);
    if let Err(why) = &engine {
        println!("chaos remote: without an engine: {why}");
    }
    if with_clusters {
        clusters::need()?;
    }
    play(seed, length, engine.is_ok(), with_clusters)
}

/// The seeds of [`check`]: between them they kill, freeze and cut off everything that there is, drain, scale and edit.
const SEEDS: [u64; 2] = [4, 8];

/// Short runs, as a check of `cargo xtask interop`: seeds that once failed, those that are always the same, and a new
/// one.
pub(crate) fn check() -> Result<()> {
    need_hosts()?;
    dockerd::need(&[Wanted::new("openssl", "openssl")])?;
    let failed = regressions::read()?.into_iter().filter_map(|once| match once {
        regressions::Once::Remote(seed) => Some(seed),
        _ => None,
    });
    failed.chain(SEEDS).chain([crate::local::seed()]).try_for_each(|seed| play(seed, SHORT, true, false))
}

/// One round with a Slurm and a Kubernetes among the providers, as a check.
pub(crate) fn check_clusters() -> Result<()> {
    need_hosts()?;
    dockerd::need(&[Wanted::new("openssl", "openssl")])?;
    clusters::need()?;
    play(crate::local::seed(), ROUND, true, true)
}

/// Removes what a run that was killed has left in the kernel.
pub(crate) fn sweep(pid: u32) {
    drop(Net::of(pid));
}

fn need_hosts() -> Result<(), Skip> {
    packages::need_root("network namespaces need root")?;
    packages::need(&sshd::PACKAGES)?;
    packages::need(&[Wanted::new("nsenter", "util-linux"), Wanted::new("flock", "util-linux")])
}

fn play(seed: u64, length: Duration, with_engine: bool, with_clusters: bool) -> Result<()> {
    println!("chaos remote: seed {seed}, {} s of trouble", length.as_secs());
    let mut world = World::start(with_engine, with_clusters)?;
    let mut troubles = Troubles::new(Dice::new(seed));
    let told = story(&mut world, &mut troubles, seed, length);
    // Also when the story broke off: what was lost may be why.
    let told = told.and(world.resolve_doubts());
    let violations = world.watch.violations();
    report(&world, &troubles, &violations);
    if told.is_err() || !violations.is_empty() {
        // What has happened is told also when the logs cannot be kept.
        match world.keep_logs(seed, &troubles.story) {
            Ok(kept) => println!("chaos remote: the story and the logs are kept in {}", kept.display()),
            Err(error) => println!("chaos remote: the logs could not be kept: {error:#}"),
        }
    }
    told.with_context(|| format!("seed {seed}"))?;
    ensure!(violations.is_empty(), "seed {seed}: {} violations: {}", violations.len(), violations.join("; "));
    let World { server, nodes, engine, clusters, .. } = world;
    drop((server, nodes, clusters));
    engine.map_or(Ok(()), dockerd::Daemon::end)
}

fn story(world: &mut World, troubles: &mut Troubles, seed: u64, length: Duration) -> Result<()> {
    // When, apart from what: how long the machine takes for one thing must not change what comes next.
    let mut pace = Dice::new(seed ^ 0x5555);
    troubles.submit_first(world)?;
    settle(world, "the first instances")?;
    let mut left = length;
    while !left.is_zero() {
        let round = left.min(ROUND);
        trouble(world, troubles, &mut pace, round)?;
        troubles.heal(world, true)?;
        world.until_nodes().context("after everything has healed")?;
        world.resolve_doubts()?;
        settle(world, "everything that was asked for, and nothing else, after everything has healed")?;
        batches(world, troubles)?;
        left -= round;
        eprintln!("chaos remote: seed {seed}, all is well, {} s of trouble are left", left.as_secs());
    }
    for job in world.server.get("/v1/jobs")?.as_array().into_iter().flatten() {
        world.stop(job["ID"].as_str().unwrap_or_default(), true)?;
    }
    let mut last = Vec::new();
    until("an end of everything", bound(world), || {
        world.tend()?;
        last = world.left()?;
        Ok(last.is_empty().then_some(()))
    })
    .with_context(|| format!("left: {last:#?}"))
}

/// One thing after another goes wrong, for a while.
fn trouble(world: &mut World, troubles: &mut Troubles, pace: &mut Dice, length: Duration) -> Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < length {
        troubles.heal(world, false)?;
        troubles.strike(world)?;
        let next = Instant::now() + Duration::from_millis(50 + pace.below(900));
        while Instant::now() < next {
            troubles.heal(world, false)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        if !troubles.server_away {
            world.resolve_doubts()?;
        }
        if !world.watch.violations().is_empty() {
            bail!(
                "what happened last: {}",
                troubles.story.iter().rev().take(6).cloned().collect::<Vec<_>>().join(" | ")
            );
        }
    }
    Ok(())
}

/// How long after everything has healed.
fn bound(world: &World) -> Duration {
    if world.clusters.is_some() { CLUSTERS_SETTLED } else { SETTLED }
}

/// Until what lives is what was asked for, everything is managed, and it stays so.
fn settle(world: &World, what: &str) -> Result<()> {
    let wanted = world.watch.wanted();
    let mut last = String::new();
    let mut since: Option<(Instant, Vec<u32>)> = None;
    until(what, bound(world), || {
        world.tend()?;
        let live = world.watch.live();
        let now: BTreeSet<_> = live.iter().map(|seen| (seen.slot.clone(), seen.version)).collect();
        let pids: Vec<u32> = live.iter().map(|seen| seen.process.pid).collect();
        let records = world.records()?;
        let lasting = |r: &&Value| faults::LASTING.iter().any(|(job, _)| r["Slot"]["JobID"] == **job);
        let odd: Vec<&Value> = records
            .iter()
            .filter(lasting)
            .filter(|r| {
                r["Observed"]["State"] != "Running"
                    || r["Manager"].is_null()
                    || r["Desired"] != "run"
                    || !r["Successor"].is_null()
            })
            .collect();
        let whole = now == wanted
            && pids.len() == wanted.len()
            && odd.is_empty()
            && records.iter().filter(lasting).count() == wanted.len();
        if !whole {
            last = format!("{} live {now:?}, wanted {wanted:?}, records that are not settled: {odd:?}", pids.len());
            since = None;
            return Ok(None);
        }
        match &since {
            Some((_, before)) if *before != pids => since = None,
            Some((at, _)) if at.elapsed() > QUIET => return Ok(Some(())),
            Some(_) => {}
            None => since = Some((Instant::now(), pids)),
        }
        Ok(None)
    })
    .with_context(|| last)
}

/// Every instance of a batch has run to its end once.
fn batches(world: &World, troubles: &Troubles) -> Result<()> {
    let slots: Vec<String> =
        troubles.batches.iter().flat_map(|(id, count)| (0..*count).map(move |index| format!("{id}.{index}"))).collect();
    let runs = |all: &BTreeMap<String, usize>, slot: &String| all.get(slot).copied().unwrap_or(0);
    until("the ends of all batches", bound(world), || {
        world.tend()?;
        let ended = world.watch.ended();
        Ok(slots.iter().all(|slot| runs(&ended, slot) >= 1).then_some(()))
    })?;
    until("the server to know of the ends of all batches", bound(world), || {
        world.tend()?;
        let jobs = world.server.list("/v1/jobs?prefix=batch-")?;
        let dead = jobs.iter().filter(|job| job["Status"] == "dead").count();
        Ok((dead == troubles.batches.len()).then_some(()))
    })?;
    let begun = world.watch.begun();
    let (lost, forgotten) = (lost_results(world, troubles)?, world.watch.forgotten());
    // What the engine did not see has no result either, and what Slurm has forgotten it ends.
    let more = |slot: &String| runs(&lost, slot) + runs(&troubles.unseen, slot) + runs(&forgotten, slot);
    let right = |slot: &String| (1..=1 + more(slot)).contains(&runs(&begun, slot));
    let wrong: Vec<_> =
        slots.iter().filter(|slot| !right(slot)).map(|slot| format!("{slot}: {}", runs(&begun, slot))).collect();
    ensure!(wrong.is_empty(), "tasks of batches have not run once: {wrong:?}");
    Ok(())
}

/// Slots with the number of times that they were restarted because the engine has lost a result: killed after it has
/// taken the result from containerd and before it has written it down, it says 255 afterwards, and nobody can tell that
/// from a task which ends so.
fn lost_results(world: &World, troubles: &Troubles) -> Result<BTreeMap<String, usize>> {
    if !troubles.counts.contains_key("engine killed") {
        return Ok(BTreeMap::new());
    }
    let told = |record: &Value| {
        let messages = record["History"].as_array().into_iter().flatten().filter_map(|entry| entry["Message"].as_str());
        messages.filter(|message| message.starts_with("exited with code 255")).count()
    };
    let at_the_engine = world.records()?.into_iter().filter(|record| record["Driver"] == "docker_remote");
    Ok(at_the_engine
        .map(|record| {
            (
                format!("{}.{}", record["Slot"]["JobID"].as_str().unwrap_or_default(), record["Slot"]["Index"]),
                told(&record),
            )
        })
        .collect())
}

fn report(world: &World, troubles: &Troubles, violations: &[String]) {
    let begun: usize = world.watch.begun().values().sum();
    let done: Vec<String> = troubles.counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    println!("chaos remote: {}", done.join(", "));
    println!(
        "chaos remote: {begun} instances have begun, {} ended by themselves well, {} looks at the hosts; \
            violations: {}",
        world.watch.ended().values().sum::<usize>(),
        world.watch.looks(),
        violations.len()
    );
    for violation in violations {
        println!("chaos remote: {violation}");
    }
}
