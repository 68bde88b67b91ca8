//! Faults at random moments that overlap: agent, plugins, server and sockets are in trouble together while tasks run
//! and end. All of it costs no task anything, so the tasks need not be told apart.

use std::{
    fmt::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{
    dice::Dice,
    fault::Fault,
    world::{Process, Spec, World, driver},
};
use crate::{local::signal, process::Run};

pub(super) const FAULTS: &[Fault] = &[Fault {
    name: "mixed",
    what: "several of: kill -9 and SIGSTOP of agent, plugins and server, deleted sockets; drawn, with overlaps",
    would_show: "what survives each of them alone, and not two at once",
    run: mixed,
}];

/// So many tasks run on, and as many end in the middle.
const TASKS: usize = 3;
/// When the last trouble begins.
const SPAN_MS: u64 = 8_000;
/// How long one of the server lasts: longer than a lease, sometimes.
const SERVER_MS: u64 = 12_000;
/// How long one of the agent lasts: a node that is silent beyond its lease loses its local tasks, and rightly.
const AGENT_MS: u64 = 3_500;
/// So long it is left alone afterwards: its lease begins anew.
const AGENT_RESTS: Duration = Duration::from_secs(3);

/// What is done to a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Strike {
    KillAgent,
    PauseAgent,
    KillPlugins,
    KillServer,
    PauseServer,
    DeleteSockets,
    /// The task of this number may end.
    End(usize),
}

/// What happens when, and for how long; in the order of the times.
fn draw(seed: u64) -> Vec<(Duration, Strike, Duration)> {
    let mut dice = Dice::new(seed);
    let mut drawn = Vec::new();
    for _ in 0..3 + dice.below(4) {
        let strike = match dice.below(6) {
            0 => Strike::KillAgent,
            1 => Strike::PauseAgent,
            2 => Strike::KillPlugins,
            3 => Strike::KillServer,
            4 => Strike::PauseServer,
            _ => Strike::DeleteSockets,
        };
        let lasts = match strike {
            Strike::KillServer | Strike::PauseServer => dice.duration(SERVER_MS),
            _ => dice.duration(AGENT_MS),
        };
        drawn.push((Duration::from_millis(dice.below(SPAN_MS)), strike, lasts));
    }
    for task in 0..TASKS {
        drawn.push((Duration::from_millis(dice.below(SPAN_MS)), Strike::End(task), Duration::ZERO));
    }
    drawn.sort_by_key(|(at, ..)| *at);
    drawn
}

/// Agent and server: what is wrong with each, and until when.
#[derive(Default)]
struct Troubles {
    agent: Option<(Strike, Instant)>,
    /// When the last trouble of the agent ended.
    agent_healed: Option<Instant>,
    server: Option<(Strike, Instant)>,
}

impl Troubles {
    /// Ends what has lasted long enough, or everything.
    fn heal(&mut self, world: &mut World, all: bool) -> Result<()> {
        let over = |trouble: &(Strike, Instant)| all || trouble.1 <= Instant::now();
        // The server first: the agent's start waits for nobody, but a look at the node does.
        match self.server.take_if(|trouble| over(trouble)) {
            Some((Strike::PauseServer, _)) => signal(world.server.pid(), Signal::CONT)?,
            Some(_) => world.server.restart()?,
            None => {}
        }
        match self.agent.take_if(|trouble| over(trouble)) {
            Some((Strike::PauseAgent, _)) => signal(world.node.pid(), Signal::CONT)?,
            Some(_) => world.restart_node()?,
            None => return Ok(()),
        }
        self.agent_healed = Some(Instant::now());
        Ok(())
    }

    /// Whether the agent may be troubled.
    fn agent_is_well(&self) -> bool {
        self.agent.is_none() && self.agent_healed.is_none_or(|at| at.elapsed() > AGENT_RESTS)
    }

    /// What already is in trouble is left alone.
    fn strike(
        &mut self,
        world: &mut World,
        strike: Strike,
        lasts: Duration,
        ends: &[std::path::PathBuf],
    ) -> Result<()> {
        let until = Instant::now() + lasts;
        match strike {
            Strike::KillAgent if self.agent_is_well() => {
                world.node.crash()?;
                self.agent = Some((strike, until));
            }
            Strike::PauseAgent if self.agent_is_well() => {
                signal(world.node.pid(), Signal::STOP)?;
                self.agent = Some((strike, until));
            }
            Strike::KillServer if self.server.is_none() => {
                world.server.crash()?;
                self.server = Some((strike, until));
            }
            Strike::PauseServer if self.server.is_none() => {
                signal(world.server.pid(), Signal::STOP)?;
                self.server = Some((strike, until));
            }
            Strike::KillPlugins => world.kill_plugins()?,
            Strike::DeleteSockets if self.agent_is_well() => {
                // Of plugins that are coming and going some may be gone before they are deleted.
                let words = ["-ignore_readdir_race", "-type", "s", "-delete"].map(std::ffi::OsStr::new);
                let dir = world.node.dir().join("data");
                Run::new("find", std::iter::once(dir.as_os_str()).chain(words)).run()?;
                // The next agent makes what it needs anew, and so do executors that it looks for.
                world.node.crash()?;
                self.agent = Some((Strike::KillAgent, until));
            }
            Strike::End(task) => std::fs::write(&ends[task], "")?,
            Strike::KillAgent
            | Strike::PauseAgent
            | Strike::KillServer
            | Strike::PauseServer
            | Strike::DeleteSockets => {}
        }
        Ok(())
    }
}

fn mixed(world: &mut World, n: usize) -> Result<()> {
    let drawn = draw(n as u64);
    let told = drawn.iter().fold(String::new(), |mut told, (at, strike, lasts)| {
        let _ = write!(told, "{:.1} s {strike:?}", at.as_secs_f64());
        if !lasts.is_zero() {
            let _ = write!(told, " for {:.1} s", lasts.as_secs_f64());
        }
        told + "; "
    });
    played(world, n, &drawn).with_context(|| format!("drawn: {told}"))
}

fn played(world: &mut World, n: usize, drawn: &[(Duration, Strike, Duration)]) -> Result<()> {
    let mut lasting: Vec<(String, Process)> = Vec::new();
    let mut ending: Vec<(String, i32)> = Vec::new();
    let mut ends = Vec::new();
    for task in 0..TASKS {
        lasting.push(world.start_task(&Spec::endless().driver(driver(n + task)))?);
        let code = i32::try_from(3 + (n + task) % 100)?;
        let (job, _) = world.start_task(&Spec::until_go(code).driver(driver(n + task + 1)))?;
        ends.push(world.alloc_dir(&job)?.join("alloc/data/go"));
        ending.push((job, code));
    }
    let mut troubles = Troubles::default();
    let begun = Instant::now();
    let struck = drawn.iter().try_for_each(|(at, strike, lasts)| {
        while begun.elapsed() < *at {
            troubles.heal(world, false)?;
            std::thread::sleep(Duration::from_millis(10));
        }
        troubles.strike(world, *strike, *lasts, &ends)
    });
    let last = drawn.iter().map(|(at, _, lasts)| *at + *lasts).max().unwrap_or_default();
    while struck.is_ok() && begun.elapsed() < last {
        troubles.heal(world, false)?;
        std::thread::sleep(Duration::from_millis(10));
    }
    // Whatever has happened: nothing stays stopped.
    troubles.heal(world, true)?;
    struck?;
    world.wait_for_node()?;
    for (job, process) in &lasting {
        world.must_run_on(job, *process)?;
    }
    for (job, code) in &ending {
        world.must_end_with(job, (*code).into())?;
        world.must_not_be_doubled(job, 1)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_the_whole_schedule_and_seeds_differ_and_overlap() {
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        let overlaps = |drawn: &[(Duration, Strike, Duration)]| {
            let lasting: Vec<_> = drawn.iter().filter(|(.., lasts)| !lasts.is_zero()).collect();
            lasting.windows(2).any(|two| two[1].0 < two[0].0 + two[0].2 && two[1].1 != two[0].1)
        };
        let all: Vec<_> = (0..50).map(draw).collect();
        assert!(all.iter().filter(|drawn| overlaps(drawn)).count() > 25);
        let kinds = [
            Strike::KillAgent,
            Strike::PauseAgent,
            Strike::KillPlugins,
            Strike::KillServer,
            Strike::PauseServer,
            Strike::DeleteSockets,
        ];
        assert!(kinds.iter().all(|kind| all.iter().flatten().any(|(_, strike, _)| strike == kind)));
    }
}
