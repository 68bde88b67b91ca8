//! `cargo xtask chaos cluster`: three servers that share an etcd of three members, three nodes, and two hosts that run
//! the nodes' remote tasks over ssh, each in a network namespace and on a small disk of its own. A seed decides who is
//! killed, frozen, stopped, cut off from all or from one, or has its disk filled; of a host it is the ssh server, never
//! a task. Meanwhile clients write, read and compare through every server, jobs are edited and nodes drained.
//!
//! What must be true: no acknowledged write is lost, no index goes back, an order explains what clients see, no lock
//! has two holders at once, no slot of a remote task has two instances at once and none ends without a cause, tasks of
//! a node to which nothing happens run on, nobody ends by itself, and everything is as it was asked for soon after the
//! last trouble.

mod clients;
mod faults;
mod locks;
mod net;
mod script;
mod truth;
mod world;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

pub(crate) use self::world::sweep;
use self::{
    clients::{Clients, Desk, Operator},
    faults::Troubles,
    world::{LOOK, World},
};
use super::{dice::Dice, regressions};
use crate::{
    builds, ends,
    interop::{etcd, sshd},
    local::{self, until},
    packages::{self, Skip, Wanted},
    process::Run,
    small_disk::SmallDisk,
};

/// How long a short run is in trouble.
const SHORT: Duration = Duration::from_secs(45);
const USUAL: Duration = Duration::from_secs(15 * 60);
/// How long the new seed of a check is in trouble.
const CHECKED: Duration = Duration::from_secs(5 * 60);
/// After so much trouble everything heals once: what has gone wrong is told near its cause.
const ROUND: Duration = Duration::from_secs(60);
/// Everything has healed: so soon all is as it was asked for.
const SETTLED: Duration = Duration::from_secs(120);
/// And it stays so.
const QUIET: Duration = Duration::from_secs(3);
/// The judged clients use other jobs after so many looks at what happens.
const OTHER_JOBS: usize = 4;

/// `chaos cluster [--for DURATION | --minutes N] [--seed S] [--short]`.
pub(super) fn run(args: &[&str]) -> Result<()> {
    let (length, seed) = super::asked("cluster", args, (USUAL, SHORT), super::fresh())?;
    builds::build(&["drover"])?;
    need()?;
    ends::watch(None, "everything of the chaos of a cluster is removed")?;
    play(seed, length)
}

/// As a check of `cargo xtask interop`: short runs with seeds that once failed, and a longer one with a new seed. Each
/// begins with what is always the same.
pub(crate) fn check() -> Result<()> {
    need()?;
    let failed = regressions::read()?.into_iter().filter_map(|once| match once {
        regressions::Once::Cluster(seed) => Some(seed),
        _ => None,
    });
    let failed = failed.map(|seed| (seed, SHORT));
    failed.chain([(super::fresh(), CHECKED)]).try_for_each(|(seed, length)| play(seed, length))
}

/// What a run needs of this machine.
fn need() -> Result<()> {
    packages::need_root("network namespaces and small disks need root")?;
    packages::need(&[Wanted::new("nsenter", "util-linux"), Wanted::new("flock", "util-linux")])?;
    packages::need(&sshd::PACKAGES)?;
    etcd::need()?;
    packages::need_go()?;
    let probe = format!("dc{}x", std::process::id());
    let made = Run::new("ip", ["netns", "add", &probe]).run();
    drop(Run::new("ip", ["netns", "del", &probe]).quiet().run());
    made.map_err(|why| Skip::because(format!("network namespaces cannot be made here: {why:#}")))?;
    let disk = SmallDisk::mount(&std::env::temp_dir().join(format!("drover-probe-{probe}")), 1);
    disk.map(drop).map_err(|why| Skip::because(format!("small file systems cannot be mounted here: {why:#}")))?;
    Ok(())
}

fn play(seed: u64, length: Duration) -> Result<()> {
    println!("chaos cluster: seed {seed}, {} s of trouble", length.as_secs());
    let mut world = World::start()?;
    let mut troubles = Troubles::new(seed);
    let mut sums = [0; 3];
    let told = story(&mut world, &mut troubles, seed, length, &mut sums);
    let violations = world.watch.violations();
    let done: Vec<String> = troubles.counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let [acknowledged, refused, reads] = sums;
    println!("chaos cluster: {}", done.join(", "));
    println!(
        "chaos cluster: {acknowledged} writes were acknowledged, {refused} were not, {reads} reads; {} tasks have \
         begun; violations: {}",
        world.watch.begun(),
        violations.len()
    );
    let interrupted = ends::asked();
    if !interrupted && (told.is_err() || !violations.is_empty()) {
        for line in troubles.story.iter().map(|line| format!("  {line}")).chain(violations.clone()) {
            println!("chaos cluster: {line}");
        }
        println!("{}", world.tails());
        // What has happened is told also when the logs cannot be kept.
        match world.keep_logs(seed, &troubles.story) {
            Ok(kept) => println!("chaos cluster: the story and the logs are kept in {}", kept.display()),
            Err(error) => println!("chaos cluster: the logs could not be kept: {error:#}"),
        }
    }
    let dir = world.dir().to_owned();
    drop(world);
    let left = local::processes_of(&dir);
    ensure!(left.is_empty() && !dir.exists(), "the run has left {left:?} or {}", dir.display());
    ensure!(!interrupted, "seed {seed}: ended before its time");
    told.with_context(|| format!("seed {seed}"))?;
    ensure!(violations.is_empty(), "seed {seed}: {} violations: {}", violations.len(), violations.join("; "));
    Ok(())
}

fn story(world: &mut World, troubles: &mut Troubles, seed: u64, length: Duration, sums: &mut [u64; 3]) -> Result<()> {
    // When, apart from what: how long the machine takes for one thing must not change what comes next.
    let (mut pace, mut left, mut round) = (Dice::new(seed ^ 0x5555), length, 0);
    settle(world, "the first tasks")?;
    script::play(world, troubles, seed, sums)?;
    while !left.is_zero() && !ends::asked() {
        let lasts = left.min(ROUND);
        let clients = Clients::start(world, seed ^ (round << 32), &format!("r{round}"))?;
        let told = one_round(world, troubles, &clients, Dice::new(seed ^ 0xaaaa ^ round), &mut pace, lasts);
        // What clients have seen is told as well, when there is nothing else.
        let seen = clients.end();
        told?;
        for (sum, seen) in sums.iter_mut().zip(seen?) {
            *sum += seen;
        }
        left -= lasts;
        round += 1;
        eprintln!(
            "chaos cluster: seed {seed}, all is well after {} troubles and {} writes, {} s are left",
            troubles.counts.values().sum::<usize>(),
            sums[0],
            left.as_secs()
        );
    }
    ensure!(!ends::asked(), "ended before its time");
    world.end_jobs()
}

fn one_round(
    world: &mut World,
    troubles: &mut Troubles,
    clients: &Clients,
    dice: Dice,
    pace: &mut Dice,
    length: Duration,
) -> Result<()> {
    let (addresses, nodes) = (world.addresses(), world.node_ids.clone());
    let desk = Desk { addresses, nodes, watch: world.watch.clone(), begun: troubles.begun };
    let operator = Operator::start(desk, dice);
    let told = trouble(world, troubles, clients, pace, length);
    let healed = troubles.heal(world, true);
    troubles.tell("everything is healed");
    let done = operator.end();
    if let Ok(done) = &done {
        troubles.story.extend(done.clone());
    }
    told?;
    healed?;
    done?;
    world.until_whole().context("after everything has healed")?;
    let before = clients.acknowledged();
    until("further writes", SETTLED, || Ok((clients.acknowledged() > before + 10).then_some(())))?;
    settle(world, "all that was asked for, and nothing else, after everything has healed")?;
    clients.nothing_is_lost(world)?;
    troubles.heal(world, true)?;
    ensure!(world.watch.violations().is_empty(), "there are violations");
    world.watch.calm();
    Ok(())
}

/// One thing after another goes wrong, for a while.
fn trouble(
    world: &mut World,
    troubles: &mut Troubles,
    clients: &Clients,
    pace: &mut Dice,
    length: Duration,
) -> Result<()> {
    let begun = Instant::now();
    for turn in 1.. {
        if begun.elapsed() >= length || ends::asked() {
            break;
        }
        troubles.strike(world)?;
        troubles.strike_host(world)?;
        if turn % OTHER_JOBS == 0 {
            clients.other_jobs();
        }
        let next = Instant::now() + Duration::from_millis(200 + pace.below(2800));
        while Instant::now() < next && !ends::asked() {
            troubles.heal(world, false)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        ensure!(world.watch.violations().is_empty(), "there are violations");
    }
    Ok(())
}

/// Until what lives is what was asked for, all remote tasks are managed, and it stays so.
fn settle(world: &World, what: &str) -> Result<()> {
    let mut last = Vec::new();
    let mut since: Option<(Instant, usize)> = None;
    until(what, SETTLED, || {
        std::thread::sleep(LOOK);
        last = world.watch.unlike();
        last.extend(world.unmanaged()?);
        let begun = world.watch.begun();
        match since {
            Some((at, before)) if last.is_empty() && before == begun => {
                return Ok((at.elapsed() > QUIET).then_some(()));
            }
            _ => since = last.is_empty().then(|| (Instant::now(), begun)),
        }
        Ok(None)
    })
    .with_context(|| format!("not so: {last:#?}"))
}
