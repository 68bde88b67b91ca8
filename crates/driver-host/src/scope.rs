//! The plugin that a process belongs to. A plugin starts other processes: executors that must outlive it, and helpers
//! that must not. Only their environment identifies them, so every plugin gets a variable that its offspring inherits.
//!
//! ```text
//! DROVER_PLUGIN = <digest of command line>.<launch>.<host>.<plugin>@<socket directory>
//! ```
//!
//! The digest distinguishes the plugin itself from its offspring, which runs other commands. The host considers only
//! processes whose *initial* environment names its own socket directory; no other agent uses that directory.

use std::path::{Path, PathBuf};

use processes::{Words, listen};

use crate::backoff::random;
use crate::options::PluginSpec;
use crate::stat::{Birth, Stat};

/// Name of the variable.
const VARIABLE: &str = "DROVER_PLUGIN";
/// First arguments of programs built on Nomad's libraries that outlive their driver on purpose. They hold workloads or
/// collect their output, and the driver finds them again by its own records.
const SURVIVORS: [&[u8]; 5] = [b"executor", b"logmon", b"docker_logger", b"libcontainer-shim", KEEP];
/// First argument of a keeper, which holds a plugin and all that it has started.
pub(crate) const KEEP: &[u8] = b"keep";
/// Every workload has this in its environment.
const WORKLOAD: &[u8] = b"NOMAD_ALLOC_ID=";

/// One launch of one plugin by one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    command: String,
    pub(crate) launch: String,
    pub(crate) host: String,
    pub(crate) plugin: String,
    socket_dir: PathBuf,
}

impl Mark {
    /// The mark of the next launch. `host` is the same for all launches of one host.
    pub(crate) fn new(spec: &PluginSpec, host: &str, socket_dir: &Path) -> Self {
        let words =
            std::iter::once(spec.command.as_os_str().as_encoded_bytes()).chain(spec.args.iter().map(String::as_bytes));
        Self {
            command: format!("{:016x}", digest(words)),
            launch: random(),
            host: host.to_owned(),
            plugin: spec.name.clone(),
            socket_dir: socket_dir.to_owned(),
        }
    }

    /// Name and value of the variable.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        let Self { command, launch, host, plugin, socket_dir } = self;
        (VARIABLE, format!("{command}.{launch}.{host}.{plugin}@{}", socket_dir.display()))
    }

    fn parse(value: &[u8]) -> Option<Self> {
        let (names, dir) = std::str::from_utf8(value).ok()?.split_once('@')?;
        let mut parts = names.splitn(4, '.').map(str::to_owned);
        let (command, launch, host, plugin) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        Some(Self { command, launch, host, plugin, socket_dir: dir.into() })
    }

    /// The mark in a process's initial environment.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        in_environment(&std::fs::read(format!("/proc/{pid}/environ")).ok()?)
    }

    /// Whether a command line is the plugin's own, perhaps after the words of an interpreter.
    fn is_plugin(&self, command_line: &[&[u8]]) -> bool {
        (0..command_line.len())
            .any(|from| format!("{:016x}", digest(command_line[from..].iter().copied())) == self.command)
    }
}

/// FNV-1a over words with their ends: agents of other releases must compute the same number.
fn digest<'a>(words: impl Iterator<Item = &'a [u8]>) -> u64 {
    let bytes = words.flat_map(|word| word.iter().copied().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn in_environment(environment: &[u8]) -> Option<Mark> {
    let prefix = const { VARIABLE.as_bytes() };
    let value = environment.split(|b| *b == 0).find_map(|entry| entry.strip_prefix(prefix)?.strip_prefix(b"="))?;
    Mark::parse(value)
}

fn words(command_line: &[u8]) -> Vec<&[u8]> {
    command_line.strip_suffix(&[0]).unwrap_or(command_line).split(|b| *b == 0).collect()
}

/// A process with a mark.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) pid: u32,
    pub(crate) birth: Birth,
    pub(crate) mark: Mark,
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Plugin processes of this socket directory, started by any agent; without those that hang. Blocking: inspects all
/// leaders of process groups.
pub(crate) fn plugins(socket_dir: &Path) -> Vec<Member> {
    // A plugin leads its process group. Other processes are not inspected: a workload may have thousands.
    ask(
        |stat| stat.group == stat.pid,
        |said| {
            let mark = in_environment(&said.environment).filter(|mark| mark.socket_dir == socket_dir)?;
            mark.is_plugin(&words(&said.line)).then_some(mark)
        },
    )
}

/// Inspects the `wanted` processes and returns those with a mark.
fn ask(wanted: impl Fn(&Stat) -> bool, mark: impl Fn(&Words) -> Option<Mark>) -> Vec<Member> {
    // Taken before the read of its memory: the birth must be that of the process read.
    let stats: Vec<Stat> = processes().filter_map(Stat::of).filter(wanted).collect();
    let heard = listen(stats.iter().map(|stat| stat.pid));
    let member = |stat: Stat| {
        let mark = mark(heard.words.get(&stat.pid)?)?;
        Some(Member { pid: stat.pid, birth: stat.birth()?, mark })
    };
    stats.into_iter().filter_map(member).collect()
}

/// Processes of an ended plugin in its process group that serve no task. A process that outlives its plugin leaves the
/// group (executors make sessions), runs a workload, or is a known survivor. Blocking.
pub(crate) fn helpers(plugin_pid: u32, mark: &Mark) -> Vec<Member> {
    ask(
        |stat| stat.group == plugin_pid && stat.pid != plugin_pid,
        |said| {
            // The group's number may have been reused, but not the mark of this launch.
            let ours = in_environment(&said.environment).is_some_and(|found| found == *mark);
            (ours && !serves_a_task(&said.environment, &words(&said.line))).then(|| mark.clone())
        },
    )
}

/// A process with the mark of a node's plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// The pid.
    pub pid: i32,
    /// Name of the plugin.
    pub plugin: String,
    /// It belongs to a plugin process that this host supervises, serves a task, or outlives its plugin on purpose.
    pub known: bool,
}

/// Those of these processes with a mark of this socket directory, without those that hang. `in_hand` tells whether a
/// process is a plugin's that this host has launched or found. Blocking: inspects them all.
pub(crate) fn marked(
    of: impl IntoIterator<Item = u32>,
    socket_dir: &Path,
    in_hand: impl Fn(u32, &Mark) -> bool,
) -> Vec<Marked> {
    let heard = listen(of);
    let look = |(pid, said): (u32, Words)| {
        let mark = in_environment(&said.environment).filter(|mark| mark.socket_dir == socket_dir)?;
        Some((pid, mark, serves_a_task(&said.environment, &words(&said.line))))
    };
    let all: Vec<(u32, Mark, bool)> = heard.words.into_iter().filter_map(look).collect();
    let live: Vec<&str> =
        all.iter().filter(|(pid, mark, _)| in_hand(*pid, mark)).map(|(_, mark, _)| mark.launch.as_str()).collect();
    let one = |(pid, mark, serves): &(u32, Mark, bool)| {
        let known = *serves || live.contains(&mark.launch.as_str());
        Some(Marked { pid: i32::try_from(*pid).ok()?, plugin: mark.plugin.clone(), known })
    };
    all.iter().filter_map(one).collect()
}

fn serves_a_task(environment: &[u8], command_line: &[&[u8]]) -> bool {
    environment.split(|b| *b == 0).any(|entry| entry.starts_with(WORKLOAD))
        || command_line.get(1).is_some_and(|word| SURVIVORS.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(args: &[&str]) -> PluginSpec {
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        PluginSpec { name: "a.b-c".into(), command: "/p/driver".into(), args, ..PluginSpec::default() }
    }

    #[test]
    fn a_mark_survives_its_way_through_the_environment() {
        let mark = Mark::new(&spec(&["x"]), "0123", Path::new("/r/p@1.2"));
        let (name, value) = mark.variable();
        let environment = format!("A=1\0{name}={value}\0B=2\0");
        assert_eq!(in_environment(environment.as_bytes()), Some(mark.clone()));
        assert_ne!(Mark::new(&spec(&["x"]), "0123", Path::new("/r/p@1.2")), mark, "each launch has its own");
        for junk in [
            "",
            "DROVER_PLUGIN",
            "DROVER_PLUGIN=",
            "DROVER_PLUGIN=a.b@c",
            "XDROVER_PLUGIN=a.b.c.d@e",
            "DROVER_PLUGIN=\u{fffd}",
        ] {
            assert_eq!(in_environment(junk.as_bytes()), None, "{junk}");
        }
    }

    #[test]
    fn the_plugin_is_told_from_its_offspring() {
        let mark = Mark::new(&spec(&["driver", "x"]), "0", Path::new("/r"));
        let cases: &[(&[&str], bool)] = &[
            (&["/p/driver", "driver", "x"], true),
            (&["/bin/sh", "/p/driver", "driver", "x"], true),
            (&["/p/driver", "executor", "{}"], false),
            (&["/p/driver", "driver", "x", "y"], false),
            (&["/p/driver", "driverx"], false),
            (&["/p/driver"], false),
            (&[], false),
        ];
        for (line, expected) in cases {
            let line: Vec<&[u8]> = line.iter().map(|word| word.as_bytes()).collect();
            assert_eq!(mark.is_plugin(&line), *expected, "{line:?}");
        }
        assert_eq!(words(b"a\0b c\0"), [b"a".as_slice(), b"b c"]);
    }

    #[test]
    fn executors_and_workloads_are_no_helpers() {
        let cases: &[(&str, &[&str], bool)] = &[
            ("A=1\0", &["/p/driver", "executor", "{}"], true),
            ("A=1\0", &["/p/driver", "docker_logger"], true),
            ("A=1\0", &["/p/keeper", "keep", "{}"], true),
            ("A=1\0NOMAD_ALLOC_ID=x\0", &["sleep", "1"], true),
            ("A=1\0XNOMAD_ALLOC_ID=x\0", &["sleep", "executor-not"], false),
            ("", &["helper"], false),
        ];
        for (environment, line, expected) in cases {
            let line: Vec<&[u8]> = line.iter().map(|word| word.as_bytes()).collect();
            assert_eq!(serves_a_task(environment.as_bytes(), &line), *expected, "{line:?}");
        }
    }
}
