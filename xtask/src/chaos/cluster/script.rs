//! What is always the same: the leader is killed, frozen and stopped, and members of etcd are killed, one after the
//! other. No node is touched, so no task begins anew.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;

use super::{
    clients::{self, Clients},
    ends,
    faults::Troubles,
    net::SERVERS,
    world::{BOUND, Who, World},
};
use crate::local::until;

/// What happens to the world whose leader is the server at that place.
type Fault = fn(&mut World, usize) -> Result<()>;

const FAULTS: [(&str, Fault); 7] = [
    ("the leader is killed", |world, leader| world.kill(Who::Server(leader))),
    ("the leader freezes", |world, leader| world.signal(Who::Server(leader), Signal::STOP)),
    ("the leader ends", |world, leader| world.stop(Who::Server(leader))),
    ("a member of etcd is killed and comes back", |world, _| {
        world.kill(Who::Member(0))?;
        std::thread::sleep(Duration::from_secs(1));
        world.start_again(Who::Member(0))
    }),
    ("the leader and most members of etcd are killed, and these come back", |world, leader| {
        world.kill(Who::Server(leader))?;
        most(|n| world.kill(Who::Member(n)))?;
        std::thread::sleep(Duration::from_secs(2));
        most(|n| world.start_again(Who::Member(n)))
    }),
    ("most members of etcd are killed until nobody leads, and come back", |world, leader| {
        most(|n| world.kill(Who::Member(n)))?;
        until("a leader that says that it leads no longer", BOUND, || {
            let answer = world.ask(leader, "/v1/jobs");
            Ok(answer.err().filter(|error| format!("{error:#}").contains("503")).map(drop))
        })?;
        let before = read_without_leader(world)?;
        // So long that it waits for its turn again, and nodes let go of remote tasks.
        std::thread::sleep(Duration::from_secs(20));
        let after = read_without_leader(world)?;
        ensure!(before == after, "stale reads had the indexes {before:?}, then {after:?}, and nothing was written");
        most(|n| world.start_again(Who::Member(n)))
    }),
    ("the leader is killed again", |world, leader| world.kill(Who::Server(leader))),
];

/// Every server answers stale reads, and says that nobody leads. The indexes of the answers.
fn read_without_leader(world: &World) -> Result<Vec<u64>> {
    let of = |address: &String| {
        until("a stale answer that knows no leader", BOUND, || clients::stale_without_leader(address))
            .with_context(|| address.clone())
    };
    world.addresses().iter().map(of).collect()
}

fn most(mut of: impl FnMut(usize) -> Result<()>) -> Result<()> {
    of(1)?;
    of(2)
}

/// Plays all of it; adds what clients have done.
pub(super) fn play(world: &mut World, troubles: &mut Troubles, seed: u64, sums: &mut [u64; 3]) -> Result<()> {
    let begun = world.watch.begun();
    let clients = Clients::start(world, seed, "s")?;
    let told = FAULTS.into_iter().try_for_each(|(what, fault)| {
        troubles.tell(what);
        one(world, &clients, what, fault, begun).context(what)
    });
    let seen = clients.end();
    told?;
    for (sum, seen) in sums.iter_mut().zip(seen?) {
        *sum += seen;
    }
    Ok(())
}

fn one(world: &mut World, clients: &Clients, what: &str, fault: Fault, begun: usize) -> Result<()> {
    ensure!(!ends::asked(), "ended before its time");
    let leader = until("one leader, told by all servers", BOUND, || world.leader())?;
    let at = Instant::now();
    fault(world, leader)?;
    let before = clients.acknowledged();
    // One whose request was under way may still be counted.
    until("further writes", BOUND, || Ok((clients.acknowledged() > before + 1).then_some(())))?;
    println!("chaos cluster: {what}: writes again after {:.2} s", at.elapsed().as_secs_f64());
    for who in (0..SERVERS.len()).map(Who::Server) {
        if !world.is_alive(who)? {
            ensure!(who == Who::Server(leader), "{} has ended by itself", who.name());
            world.start_again(who)?;
        }
        world.signal(who, Signal::CONT)?;
    }
    world.until_whole()?;
    let now = world.watch.begun();
    ensure!(now == begun, "tasks have begun anew: {now} have begun, {begun} had before");
    clients.other_jobs();
    clients.nothing_is_lost(world)
}
