//! What goes wrong, drawn from the dice, and how long.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use anyhow::Result;
use rustix::process::Signal;
use serde_json::Value;

use super::{
    super::dice::Dice,
    clusters::{CONTROLLER, PARTS, Part},
    net::{HOSTS, NODES},
    truth::Ends,
    world::{Job, World},
};
use crate::{
    interop::sshd,
    local::{kill, signal},
};

/// What ends a trouble.
enum Heal {
    Line(String),
    Continue(Vec<u32>),
    StartNode(usize),
    StartServer,
    StartSshd(&'static str),
    StartEngine,
    /// What the operator does about containers that the engine has lost sight of.
    EndUnseen(Vec<String>),
    EndDrain(usize),
    StartPart(Part),
}

/// How long after the engine is back: nothing may be started beside what it does not see.
const OPERATOR: Duration = Duration::from_secs(4);

/// The jobs whose instances run until they are told to end.
pub(super) const LASTING: [(&str, &str); 4] =
    [("far", "remote_exec"), ("box", "docker_remote"), ("queue", "slurm"), ("pod", "kubernetes")];

/// Troubles that are on, and what has been asked of the server.
pub(super) struct Troubles {
    dice: Dice,
    on: Vec<(Instant, Heal)>,
    down: [bool; NODES.len()],
    drained: [bool; NODES.len()],
    no_sshd: Vec<&'static str>,
    /// Killed or stopped: nothing is asked of it.
    pub(super) server_away: bool,
    engine_down: bool,
    parts_down: Vec<Part>,
    /// Version and count of lasting jobs; none when stopped.
    jobs: BTreeMap<&'static str, Option<(u32, u32)>>,
    version: u32,
    pub(super) batches: Vec<(String, u32)>,
    /// Slots with the number of their instances that the engine has lost sight of.
    pub(super) unseen: BTreeMap<String, usize>,
    /// What has been done, with times.
    pub(super) story: Vec<String>,
    pub(super) counts: BTreeMap<&'static str, usize>,
    begun: Instant,
}

impl Troubles {
    pub(super) fn new(dice: Dice) -> Self {
        Self {
            dice,
            on: Vec::new(),
            down: [false; NODES.len()],
            drained: [false; NODES.len()],
            no_sshd: Vec::new(),
            server_away: false,
            engine_down: false,
            parts_down: Vec::new(),
            jobs: BTreeMap::new(),
            version: 0,
            batches: Vec::new(),
            unseen: BTreeMap::new(),
            story: Vec::new(),
            counts: BTreeMap::new(),
            begun: Instant::now(),
        }
    }

    /// Asks for the jobs that the story is about.
    pub(super) fn submit_first(&mut self, world: &World) -> Result<()> {
        let drivers: Vec<&str> = world.drivers().collect();
        for (id, driver) in LASTING.into_iter().filter(|(_, driver)| drivers.contains(driver)) {
            world.submit(&Job { id, driver, ends: Ends::Never }, 0, 3)?;
            self.jobs.insert(id, Some((0, 3)));
        }
        world.submit(&Job { id: "restless", driver: "remote_exec", ends: Ends::Badly }, 0, 2)
    }

    fn tell(&mut self, kind: &'static str, what: &str) {
        *self.counts.entry(kind).or_default() += 1;
        self.story.push(format!("{:8.2} {what}", self.begun.elapsed().as_secs_f64()));
    }

    fn until(&mut self, longest_ms: u64, heal: Heal) -> Duration {
        let lasts = self.dice.duration(longest_ms);
        self.on.push((Instant::now() + lasts, heal));
        lasts
    }

    /// Ends the troubles whose time has come, or all of them.
    pub(super) fn heal(&mut self, world: &mut World, all: bool) -> Result<()> {
        let now = Instant::now();
        let (due, on) = std::mem::take(&mut self.on).into_iter().partition(|(at, _)| all || *at <= now);
        self.on = on;
        // The server comes first: it is asked for the end of drains.
        let (mut first, rest): (Vec<_>, Vec<_>) = due
            .into_iter()
            .partition(|(_, heal)| matches!(heal, Heal::StartServer | Heal::Continue(_) | Heal::Line(_)));
        first.extend(rest);
        for (_, heal) in first {
            match heal {
                Heal::Line(line) => world.net.set_line(&line, "up")?,
                Heal::Continue(pids) => {
                    if pids.contains(&world.server.pid()) {
                        self.server_away = false;
                    }
                    for pid in pids {
                        signal(pid, Signal::CONT)?;
                    }
                }
                Heal::StartNode(node) => {
                    world.nodes[node].restart()?;
                    self.down[node] = false;
                }
                Heal::StartServer => {
                    world.server.restart()?;
                    crate::local::until("the server's answer", super::world::BOUND, || {
                        Ok(Some(world.server.get("/v1/nodes")?))
                    })?;
                    self.server_away = false;
                }
                Heal::StartSshd(host) => {
                    world.start_sshd(host)?;
                    self.no_sshd.retain(|other| *other != host);
                }
                Heal::StartEngine => {
                    if let Some(engine) = &mut world.engine {
                        engine.up()?;
                    }
                    self.engine_down = false;
                }
                Heal::StartPart(part) => {
                    if let Some(clusters) = &world.clusters {
                        clusters.again(part)?;
                    }
                    if part == CONTROLLER {
                        world.watch.controller_is_back();
                    }
                    self.parts_down.retain(|other| *other != part);
                }
                Heal::EndUnseen(containers) => {
                    for container in containers {
                        world.end_unseen(&container);
                    }
                }
                Heal::EndDrain(node) if self.server_away => {
                    self.on.push((now + Duration::from_millis(200), Heal::EndDrain(node)))
                }
                Heal::EndDrain(node) => {
                    world.drain(node, false)?;
                    self.drained[node] = false;
                }
            }
        }
        Ok(())
    }

    /// Something happens. Returns whether it could; what is already in that trouble is left alone.
    pub(super) fn strike(&mut self, world: &mut World) -> Result<bool> {
        const MANY: usize = 4;
        let node = self.dice.index(NODES.len());
        let host = HOSTS[self.dice.index(HOSTS.len())];
        // Without clusters the same seed does the same as it always did.
        let kind = self.dice.below(if world.clusters.is_some() { 26 } else { 20 });
        if self.on.len() >= MANY && (kind < 13 || (20..23).contains(&kind)) {
            return Ok(false);
        }
        match kind {
            0 | 1 => return self.kill_node(world, node),
            2 => self.kill_some(world, node, &["driver remote_exec", "driver docker_remote"], "plugins killed")?,
            3 => self.kill_some(world, node, &["ssh "], "ssh of a node killed")?,
            4 => self.kill_channel(world, host)?,
            5 => return self.kill_sshd(world, host),
            6 => self.cut(world, format!("c-{}", NODES[node]), "node cut off from the server")?,
            7 => self.cut(world, format!("p-{}", NODES[node]), "node cut off from providers")?,
            8 => self.cut(world, format!("p-{host}"), "host cut off")?,
            9 => return self.engine_trouble(world),
            10 => self.pause_node(world, node)?,
            11 => self.pause_far(world, host)?,
            12 => return self.server_trouble(world),
            13 | 14 => return self.drain(world, node),
            15 => return self.kill_executor(world),
            16..=18 => return self.edit(world),
            19 => return self.batch(world),
            20..=22 => return self.kill_part(world),
            _ => return self.take_away(world),
        }
        Ok(true)
    }

    fn kill_node(&mut self, world: &mut World, node: usize) -> Result<bool> {
        if self.down[node] {
            return Ok(false);
        }
        world.nodes[node].crash()?;
        let with_plugins = self.dice.below(2) == 0;
        if with_plugins {
            for pid in world.nodes[node].processes().into_keys() {
                kill(pid)?;
            }
        }
        self.down[node] = true;
        let lasts = self.until(16_000, Heal::StartNode(node));
        let what = if with_plugins { "with everything of it" } else { "without its plugins" };
        self.tell("agents killed", &format!("kill -9 of agent {} {what}, for {lasts:?}", NODES[node]));
        Ok(true)
    }

    fn kill_some(&mut self, world: &World, node: usize, parts: &[&str], kind: &'static str) -> Result<()> {
        let processes = world.nodes[node].processes();
        let some = processes.iter().filter(|(_, command)| {
            parts.iter().any(|part| command.contains(part) && !command.contains("agent -config"))
        });
        let some: Vec<u32> = some.map(|(pid, _)| *pid).collect();
        for pid in &some {
            kill(*pid)?;
        }
        self.tell(kind, &format!("kill -9 on {}: {parts:?}, {} processes", NODES[node], some.len()));
        Ok(())
    }

    fn kill_channel(&mut self, world: &World, host: &str) -> Result<()> {
        let channels = sshd::channels(&world.net.namespace(host));
        for pid in &channels {
            kill(*pid)?;
        }
        self.tell("channels killed", &format!("kill -9 of {} channels on host {host}", channels.len()));
        Ok(())
    }

    fn kill_sshd(&mut self, world: &mut World, host: &'static str) -> Result<bool> {
        if self.no_sshd.contains(&host) {
            return Ok(false);
        }
        world.end_sshd(host)?;
        self.no_sshd.push(host);
        let lasts = self.until(8_000, Heal::StartSshd(host));
        self.tell("ssh servers killed", &format!("kill -9 of the ssh server of host {host}, for {lasts:?}"));
        Ok(true)
    }

    fn cut(&mut self, world: &World, line: String, kind: &'static str) -> Result<()> {
        world.net.set_line(&line, "down")?;
        let lasts = self.until(16_000, Heal::Line(line.clone()));
        self.tell(kind, &format!("line {line} cut for {lasts:?}"));
        Ok(())
    }

    fn engine_trouble(&mut self, world: &mut World) -> Result<bool> {
        let Some(engine) = &mut world.engine else { return Ok(false) };
        if self.dice.below(2) == 0 {
            self.cut(world, "p-engine".to_owned(), "engine cut off")?;
        } else if !self.engine_down {
            engine.crash()?;
            let unseen = engine.unseen()?;
            self.engine_down = true;
            let lasts = self.until(6_000, Heal::StartEngine);
            if !unseen.is_empty() {
                let slots: Vec<String> = unseen.iter().map(|(_, labels)| slot_name(labels)).collect();
                self.tell("containers unseen", &format!("the engine has lost sight of {slots:?}"));
                for slot in slots {
                    *self.unseen.entry(slot).or_default() += 1;
                }
                let containers = unseen.into_iter().map(|(id, _)| id).collect();
                self.on.push((Instant::now() + lasts + OPERATOR, Heal::EndUnseen(containers)));
            }
            self.tell("engine killed", &format!("kill -9 of the engine, for {lasts:?}"));
        }
        Ok(true)
    }

    fn kill_part(&mut self, world: &World) -> Result<bool> {
        let part = PARTS[self.dice.index(PARTS.len())];
        let Some(clusters) = world.clusters.as_ref().filter(|_| !self.parts_down.contains(&part)) else {
            return Ok(false);
        };
        clusters.kill(part)?;
        // Afterwards: until then it may save more.
        if part == CONTROLLER {
            world.watch.controller_died(clusters.saved());
        }
        self.parts_down.push(part);
        let lasts = self.until(12_000, Heal::StartPart(part));
        self.tell("daemons of clusters killed", &format!("kill -9 of {}, for {lasts:?}", part.name()));
        Ok(true)
    }

    /// A person ends an instance at its cluster.
    fn take_away(&mut self, world: &World) -> Result<bool> {
        let live: Vec<_> = world.watch.live().into_iter().filter(|seen| seen.host == "engine").collect();
        let Some(clusters) = world.clusters.as_ref().filter(|_| !live.is_empty()) else { return Ok(false) };
        let seen = &live[self.dice.index(live.len())];
        let sort = self.dice.index(2);
        let new = world.watch.excuse(seen.process.pid);
        let Some(done) = clusters.take_away(seen.process.pid, sort) else {
            // It may have just ended, of what was done to it before.
            if new {
                world.watch.blame(seen.process.pid);
            }
            return Ok(false);
        };
        self.tell("ended by a person", &format!("{:?}: {done}", seen.slot));
        Ok(true)
    }

    fn pause(&mut self, pids: Vec<u32>, kind: &'static str, what: &str) -> Result<()> {
        for pid in &pids {
            signal(*pid, Signal::STOP)?;
        }
        let lasts = self.until(14_000, Heal::Continue(pids));
        self.tell(kind, &format!("SIGSTOP of {what} for {lasts:?}"));
        Ok(())
    }

    fn pause_node(&mut self, world: &World, node: usize) -> Result<()> {
        let agent = world.nodes[node].pid();
        let all = world.nodes[node].processes();
        let (pids, what) = match self.dice.below(3) {
            0 => (vec![agent], "the agent"),
            1 => (all.into_keys().collect(), "everything"),
            _ => (all.into_iter().filter(|(_, c)| c.contains(" driver ")).map(|(pid, _)| pid).collect(), "the plugins"),
        };
        // A killed agent's number may be somebody else's by now.
        if self.down[node] {
            return Ok(());
        }
        self.pause(pids, "nodes paused", &format!("{what} of {}", NODES[node]))
    }

    fn pause_far(&mut self, world: &World, host: &str) -> Result<()> {
        let channels = sshd::channels(&world.net.namespace(host));
        self.pause(channels, "channels paused", &format!("the channels of host {host}"))
    }

    fn server_trouble(&mut self, world: &mut World) -> Result<bool> {
        if self.server_away {
            return Ok(false);
        }
        self.server_away = true;
        if self.dice.below(3) == 0 {
            let pid = world.server.pid();
            self.pause(vec![pid], "server paused", "the server")?;
        } else {
            world.server.crash()?;
            let lasts = self.until(5_000, Heal::StartServer);
            self.tell("server killed", &format!("kill -9 of the server, for {lasts:?}"));
        }
        Ok(true)
    }

    fn drain(&mut self, world: &World, node: usize) -> Result<bool> {
        if self.server_away || self.drained[node] {
            return Ok(false);
        }
        self.drained[node] = true;
        let lasts = self.until(12_000, Heal::EndDrain(node));
        self.tell("drains", &format!("drain of {} for {lasts:?}", NODES[node]));
        world.drain(node, true)?;
        Ok(true)
    }

    fn kill_executor(&mut self, world: &World) -> Result<bool> {
        let live: Vec<_> = world.watch.live().into_iter().filter(|seen| seen.host != "engine").collect();
        if live.is_empty() {
            return Ok(false);
        }
        let seen = &live[self.dice.index(live.len())];
        let status = fs::read_to_string(format!("/proc/{}/stat", seen.process.pid)).unwrap_or_default();
        let parent = status.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        let Some(parent) = parent.filter(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().contains("drover-executor")
        }) else {
            return Ok(false);
        };
        world.watch.excuse(seen.process.pid);
        kill(parent)?;
        self.tell("executors killed", &format!("kill -9 of the executor of {:?} on {}", seen.slot, seen.host));
        Ok(true)
    }

    fn edit(&mut self, world: &World) -> Result<bool> {
        if self.server_away {
            return Ok(false);
        }
        let jobs: Vec<_> = LASTING.into_iter().filter(|(id, _)| self.jobs.contains_key(id)).collect();
        let (id, driver) = jobs[self.dice.index(jobs.len())];
        let job = Job { id, driver, ends: Ends::Never };
        let (version, count) = self.jobs.get(id).copied().flatten().unwrap_or_else(|| {
            // A job that was stopped is another one: what is left of the former must be told from it.
            self.version += 1;
            (self.version, 3)
        });
        match self.dice.below(8) {
            0..=3 => {
                let count = u32::try_from(self.dice.below(6)).unwrap_or(0);
                self.jobs.insert(id, Some((version, count)));
                self.tell("scaled", &format!("{id} to {count}"));
                world.submit(&job, version, count)?;
            }
            4 | 5 => {
                self.version += 1;
                self.jobs.insert(id, Some((self.version, count)));
                self.tell("edited", &format!("{id} to version {} ({count})", self.version));
                world.submit(&job, self.version, count)?;
            }
            n => {
                self.jobs.insert(id, None);
                self.tell("jobs stopped", &format!("{id} stopped, purge {}", n == 6));
                world.stop(id, n == 6)?;
            }
        }
        Ok(true)
    }

    fn batch(&mut self, world: &World) -> Result<bool> {
        if self.server_away {
            return Ok(false);
        }
        let id = format!("batch-{}", self.batches.len());
        let count = 1 + u32::try_from(self.dice.below(3)).unwrap_or(0);
        let driver = LASTING[self.dice.index(self.jobs.len())].1;
        world.submit(&Job { id: &id, driver, ends: Ends::Well }, 0, count)?;
        self.tell("batches", &format!("{id} of {count} with {driver}"));
        self.batches.push((id, count));
        Ok(true)
    }
}

/// `job.index` of a container's slot, which its label has as `default/job.group[index]/task`.
fn slot_name(labels: &Value) -> String {
    let slot = labels["drover.slot"].as_str().unwrap_or_default();
    let name = slot.strip_prefix("default/").and_then(|rest| {
        let (job, rest) = rest.split_once(".g[")?;
        Some(format!("{job}.{}", rest.split_once(']')?.0))
    });
    name.unwrap_or_else(|| slot.to_owned())
}
