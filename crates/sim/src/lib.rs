//! The real servers and nodes under virtual time: commit, broker, workers, loops, sessions, leases, the loops of
//! allocations and remote tasks run as they are shipped, in one thread, and an hour of theirs takes a second or so.
//!
//! What they stand on is simulated, from one seed: clocks and randomness ([`machine`]), the disk of the servers, the
//! network between nodes and servers, the provider, and the plugin of each node, which speaks the real protocol over a
//! connection in memory. A [`Plan`] says what befalls them. What must hold is judged at every second.
//!
//! In a plan of [`Plan::with`] two servers share a store that misbehaves: `truth` is the store, `shared` what a server
//! has of it, `servers` how they lead by turns. `world::past` judges hours in which an older copy takes its place.
//!
//! Not simulated: the records of nodes lie in real files, and local tasks do not run. Begin reading at [`play`], then
//! `world`.

mod agents;
mod disk;
mod history;
mod launches;
mod machine;
mod mark;
mod net;
pub mod plan;
mod provider;
mod servers;
mod shared;
mod shorten;
mod signal;
mod truth;
mod wanted;
mod world;

use std::{
    sync::{Arc, OnceLock},
    thread,
    time::{Duration, Instant},
};

pub use plan::{Flaw, Plan, Step};
pub use shorten::shorten;

use crate::{history::History, machine::Machine, world::World};

/// What came of a plan.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first thing that must never be; None = all was well.
    pub violation: Option<String>,
    /// What happened, in order.
    pub lines: Vec<String>,
    /// Digest of the lines.
    pub digest: String,
    /// Virtual time that passed.
    pub simulated: Duration,
    /// Real time that it took.
    pub took: Duration,
}

/// Plays a plan. The same plan has the same outcome in each process that plays it first. A later play of a process
/// draws other orders in which those who wait for the same thing wake: tokio seeds each runtime from a count of the
/// process.
///
/// # Panics
/// When the system gives no thread or directory, or when the simulated code panics outside of what guards it.
#[must_use]
pub fn play(plan: &Plan) -> Outcome {
    let plan = plan.clone();
    let begun = Instant::now();
    // What a thread remembers of earlier randomness must not reach into a simulation.
    let thread = thread::Builder::new().name("simulation".into()).stack_size(8 * 1024 * 1024);
    let played = thread.spawn(move || played(&plan)).expect("a thread").join();
    let outcome = played.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    Outcome { took: begun.elapsed(), ..outcome }
}

/// A history with a second thread in it cannot be repeated.
const SECOND_THREAD: &str = "work was given to a thread beside the simulation (see `blocking::spawn`)";

fn played(plan: &Plan) -> Outcome {
    let root = tempfile::Builder::new().prefix("drover-sim-").tempdir_in(memory()).expect("a directory");
    let machine = Machine::new(plan.seed);
    machine.enter();
    assert!(machine::installed() && machine.rules(), "the clock of the C library was not replaced");
    let history = History::new(machine.clone());
    let (second, ticking, base) = (history.clone(), machine.clone(), Arc::new(OnceLock::new()));
    let since = base.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .global_queue_interval(u32::MAX)
        .on_thread_start(move || second.violated(SECOND_THREAD))
        .on_thread_unpark(move || {
            let now = tokio::time::Instant::now();
            ticking.set_now(now.duration_since(*since.get_or_init(|| now)));
        })
        .build()
        .expect("a runtime");
    let simulated = runtime.block_on(async {
        let begun = *base.get_or_init(tokio::time::Instant::now);
        let mut world = World::new(plan, machine.clone(), history.clone(), root.path()).await;
        world.play(plan).await;
        begun.elapsed()
    });
    let violation = history.violation();
    let (lines, digest) = history.told();
    drop(runtime);
    Machine::leave();
    Outcome { violation, lines, digest, simulated, took: Duration::ZERO }
}

/// Where the files of nodes are: in memory, if the system has such a place.
fn memory() -> std::path::PathBuf {
    let memory = std::path::PathBuf::from("/dev/shm");
    if memory.is_dir() { memory } else { std::env::temp_dir() }
}

/// A store as servers of a simulation share it, alone and with nothing broken: for the tests of the contract that all
/// stores fulfil. Its loops run on the runtime that this is called in.
///
/// # Errors
/// When it is not reached, which nothing keeps it from.
pub async fn shared_store() -> Result<Arc<dyn store::Store>, store::StoreError> {
    let truth = truth::Truth::new(1, None, History::new(Machine::new(1)));
    Ok(shared::SharedStore::open(&truth, 0).await?)
}

/// Seeds that have once failed: the numbers that begin the lines of `regressions.txt`.
#[must_use]
pub fn regressions() -> Vec<u64> {
    let lines = include_str!("../regressions.txt").lines();
    lines.filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect()
}
