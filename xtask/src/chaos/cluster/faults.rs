//! What goes wrong, drawn from the dice, and how long.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::{
    super::dice::Dice,
    net::{HOSTS, NODES},
    world::{Who, World},
};
use crate::{
    interop::sshd,
    local::{kill, signal},
};

/// At most so many at a time, without those of hosts.
const AT_ONCE: usize = 2;
/// The longest one: longer than every lease.
const LONGEST_MS: u64 = 24_000;

/// What ends a trouble.
enum Heal {
    Start,
    /// It, and these processes of it.
    Continue(Vec<u32>),
    Mend,
    /// Ways that are open again.
    Unblock(Vec<(&'static str, &'static str)>),
    /// The file that takes all room.
    Empty(PathBuf),
}

/// A trouble that is on.
struct Trouble {
    until: Instant,
    who: Who,
    /// The other end of a lost way.
    with: Option<Who>,
    heal: Heal,
}

/// Troubles that are on, and what has been.
pub(super) struct Troubles {
    dice: Dice,
    /// What happens to hosts is drawn apart: a trouble of theirs does not change what comes next for others.
    dice_of_hosts: Dice,
    on: Vec<Trouble>,
    /// Those whose disk has been full since everything was well: they may have ended by that.
    short: Vec<Who>,
    /// What has been done, with times.
    pub(super) story: Vec<String>,
    pub(super) counts: BTreeMap<String, usize>,
    pub(super) begun: Instant,
}

impl Troubles {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed),
            dice_of_hosts: Dice::new(seed ^ 0x3333),
            on: Vec::new(),
            short: Vec::new(),
            story: Vec::new(),
            counts: BTreeMap::new(),
            begun: Instant::now(),
        }
    }

    pub(super) fn tell(&mut self, what: &str) {
        self.story.push(format!("{:8.2} {what}", self.begun.elapsed().as_secs_f64()));
    }

    /// Ends the troubles whose time has come, or all of them.
    pub(super) fn heal(&mut self, world: &mut World, all: bool) -> Result<()> {
        let now = Instant::now();
        let (due, on): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.on).into_iter().partition(|trouble| all || trouble.until <= now);
        self.on = on;
        for Trouble { who, heal, .. } in due {
            let what = match heal {
                Heal::Start => {
                    world.start_again(who)?;
                    "is started"
                }
                Heal::Continue(pids) => {
                    world.signal(who, Signal::CONT)?;
                    pids.into_iter().try_for_each(|pid| signal(pid, Signal::CONT))?;
                    "goes on"
                }
                Heal::Mend => {
                    world.net.mend(who.name())?;
                    "is reached again"
                }
                Heal::Unblock(ways) => {
                    ways.iter().try_for_each(|(from, to)| world.net.unblock(from, to))?;
                    "has its ways again"
                }
                Heal::Empty(ballast) => {
                    fs::remove_file(&ballast).with_context(|| format!("remove {}", ballast.display()))?;
                    "has room again"
                }
            };
            self.tell(&format!("  {} {what}", who.name()));
        }
        self.look(world, all)
    }

    /// Starts those again that have ended by themselves, and tells of it where nothing excuses that.
    fn look(&mut self, world: &mut World, all: bool) -> Result<()> {
        for who in Who::all() {
            let away = |trouble: &Trouble| trouble.who == who && matches!(trouble.heal, Heal::Start);
            if self.on.iter().any(away) || world.is_alive(who)? {
                continue;
            }
            let full = |trouble: &Trouble| trouble.who == who && matches!(trouble.heal, Heal::Empty(_));
            if self.on.iter().any(full) {
                // As an operator who waits for room.
                continue;
            }
            if self.short.contains(&who) {
                *self.counts.entry("ended for want of room".into()).or_default() += 1;
                self.tell(&format!("  {} had ended for want of room, and is started", who.name()));
            } else {
                let what = format!("ENDED: {} has ended by itself", who.name());
                self.tell(&what);
                world.watch.tell(what);
            }
            world.start_again(who)?;
        }
        if all {
            self.short.clear();
        }
        Ok(())
    }

    fn is_busy(&self, who: Who) -> bool {
        self.on.iter().any(|trouble| trouble.who == who || trouble.with == Some(who))
    }

    /// Something happens, if there is not enough of it already.
    pub(super) fn strike(&mut self, world: &mut World) -> Result<()> {
        let (who, kind, at) = (self.who(), self.dice.below(12), self.who());
        let direction = self.dice.below(3);
        let lasts = self.dice.duration(LONGEST_MS);
        let apart = who != at && !self.is_busy(at);
        let on = self.on.iter().filter(|trouble| !matches!(trouble.who, Who::Host(_))).count();
        if on >= AT_ONCE || self.is_busy(who) {
            return Ok(());
        }
        for touched in [Some(who), (kind >= 10 && apart).then_some(at)].into_iter().flatten() {
            if let Who::Node(node) = touched {
                world.watch.disturb(node);
            }
        }
        let name = who.name();
        let (what, with, heal) = match kind {
            0..3 => {
                // Also what it has started to drive tasks, half of the time.
                let plugins = self.plugins(world, who);
                world.kill(who)?;
                plugins.into_iter().try_for_each(kill)?;
                ("killed", None, Heal::Start)
            }
            3 => {
                world.stop(who)?;
                ("stopped", None, Heal::Start)
            }
            4 | 5 => {
                let plugins = self.plugins(world, who);
                world.signal(who, Signal::STOP)?;
                plugins.iter().try_for_each(|pid| signal(*pid, Signal::STOP))?;
                ("frozen", None, Heal::Continue(plugins))
            }
            6 | 7 => {
                world.net.cut(name)?;
                ("cut off", None, Heal::Mend)
            }
            8 | 9 => {
                let ballast = world.disk(who)?.fill()?;
                self.short.push(who);
                ("short of disk", None, Heal::Empty(ballast))
            }
            _ if apart => {
                let (there, back) = ((name, at.name()), (at.name(), name));
                let (ways, what) = match direction {
                    0 => (vec![there], "one way lost"),
                    1 => (vec![back], "one way lost"),
                    _ => (vec![there, back], "both ways lost"),
                };
                ways.iter().try_for_each(|(from, to)| world.net.block(from, to))?;
                (what, Some(at), Heal::Unblock(ways))
            }
            _ => return Ok(()),
        };
        self.begin(Trouble { until: Instant::now() + lasts, who, with, heal }, what, lasts);
        Ok(())
    }

    /// Something happens to a host, now and then. Its tasks notice nothing.
    pub(super) fn strike_host(&mut self, world: &mut World) -> Result<()> {
        let dice = &mut self.dice_of_hosts;
        let (n, kind, node) = (dice.index(HOSTS.len()), dice.below(20), NODES[dice.index(NODES.len())]);
        let (direction, with_channels, lasts) = (dice.below(3), dice.below(2) == 0, dice.duration(LONGEST_MS));
        let (who, host) = (Who::Host(n), HOSTS[n]);
        if self.is_busy(who) {
            return Ok(());
        }
        let namespace = world.net.namespace(host);
        // Half of the time also what carries out the managers' calls there, which outlives its connection for a while.
        let channels = if with_channels { sshd::channels(&namespace) } else { Vec::new() };
        let (what, heal) = match kind {
            0 | 1 => {
                world.kill(who)?;
                channels.into_iter().try_for_each(kill)?;
                ("killed", Heal::Start)
            }
            2 | 3 => {
                let frozen: Vec<u32> = sshd::servers(&namespace).into_iter().chain(channels).collect();
                frozen.iter().try_for_each(|pid| signal(*pid, Signal::STOP))?;
                ("frozen", Heal::Continue(frozen))
            }
            4 | 5 => {
                world.net.cut(host)?;
                ("cut off", Heal::Mend)
            }
            6 | 7 => ("short of disk", Heal::Empty(world.disk(who)?.fill()?)),
            8 | 9 => {
                let ways = match direction {
                    0 => vec![(host, node)],
                    1 => vec![(node, host)],
                    _ => vec![(host, node), (node, host)],
                };
                ways.iter().try_for_each(|(from, to)| world.net.block(from, to))?;
                ("cut off from one node", Heal::Unblock(ways))
            }
            _ => return Ok(()),
        };
        // The node stays free for other troubles: these ways are its alone.
        self.begin(Trouble { until: Instant::now() + lasts, who, with: None, heal }, what, lasts);
        Ok(())
    }

    fn begin(&mut self, trouble: Trouble, what: &str, lasts: Duration) {
        let group = match trouble.who {
            Who::Server(_) => "servers",
            Who::Member(_) => "members of etcd",
            Who::Node(_) => "nodes",
            Who::Host(_) => "hosts",
        };
        let count = if trouble.with.is_some() { what.to_owned() } else { format!("{group} {what}") };
        *self.counts.entry(count).or_default() += 1;
        let ways = match &trouble.heal {
            Heal::Unblock(ways) => format!(" {ways:?}"),
            _ => String::new(),
        };
        self.tell(&format!("{}: {what}{ways} for {:.1} s", trouble.who.name(), lasts.as_secs_f64()));
        self.on.push(trouble);
    }

    fn who(&mut self) -> Who {
        let n = self.dice.index(3);
        match self.dice.below(10) {
            0..4 => Who::Server(n),
            4..7 => Who::Member(n),
            _ => Who::Node(n),
        }
    }

    /// The plugins of a node, half of the time.
    fn plugins(&mut self, world: &World, who: Who) -> Vec<u32> {
        let both = self.dice.below(2) == 0;
        match who {
            Who::Node(n) if both => world.nodes[n].pids(|command| command.contains(" driver ")),
            _ => Vec::new(),
        }
    }
}
