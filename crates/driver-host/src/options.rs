//! Options of a host.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::within::Within;
use driver_proto::base;
use driver_proto::handshake::{MAX_PORT_DEFAULT, MIN_PORT_DEFAULT};

/// One plugin to run.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PluginSpec {
    /// The file name, which is also the label of the operator's `plugin` block. A built-in plugin has its driver's
    /// name.
    pub name: String,
    /// The program. It may be missing or empty: the plugin's status says so, and the host looks for it again.
    pub command: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// The operator's `config`, as the JSON of the block's body; `None` means empty.
    pub config: Option<serde_json::Value>,
    /// Ships with the agent; for display.
    pub builtin: bool,
    /// Added to the agent's environment.
    pub env: BTreeMap<String, String>,
    /// The `cgroup.procs` file into which the plugin's pid goes first: its cgroup identifies everything that it starts.
    pub procs: Option<PathBuf>,
    /// Program that becomes its parent where there is no cgroup, `<program> keep <plugin>`: it adopts the orphans below
    /// it.
    pub keeper: Option<PathBuf>,
    /// It runs within this process, instead of the program.
    pub within: Option<Within>,
}

/// The operator's `plugin "name" { … }`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PluginBlock {
    /// Arguments for the program.
    pub args: Vec<String>,
    /// The body of `config`.
    pub config: Option<serde_json::Value>,
}

/// The plugins of these blocks, with their files in a directory. No other file there runs; the texts name executables
/// without a block. A block without a usable file gives a plugin that cannot start, whose status has the reason; so do
/// all blocks without a directory.
///
/// # Errors
/// When the directory cannot be read.
pub fn discover(
    dir: Option<&Path>,
    blocks: &BTreeMap<String, PluginBlock>,
) -> std::io::Result<(Vec<PluginSpec>, Vec<String>)> {
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    let mut notes = Vec::new();
    let entries = dir.map(|dir| std::fs::read_dir(dir)?.collect::<Result<Vec<_>, _>>()).transpose()?;
    for entry in entries.into_iter().flatten() {
        let path = entry.path();
        // Follows links: a link to an executable counts as one.
        let Ok(meta) = std::fs::metadata(&path) else {
            continue;
        };
        if !meta.is_file() || meta.permissions().mode() & 0o111 == 0 {
            continue;
        }
        let file = entry.file_name().to_string_lossy().into_owned();
        let name = file.strip_suffix(".exe").unwrap_or(&file).to_owned();
        if !blocks.contains_key(&name) {
            notes.push(format!(
                "{path:?} is not run: add `plugin \"{name}\" {{}}` to the agent's configuration to use it"
            ));
        }
        files.insert(name, path);
    }
    notes.sort();
    let expected = |name: &str| dir.map(|dir| dir.join(name)).unwrap_or_default();
    let specs = blocks.iter().map(|(name, block)| PluginSpec {
        name: name.clone(),
        command: files.get(name).cloned().unwrap_or_else(|| expected(name)),
        args: block.args.clone(),
        config: block.config.clone(),
        builtin: false,
        env: BTreeMap::new(),
        procs: None,
        keeper: None,
        within: None,
    });
    Ok((specs.collect(), notes))
}

/// A logical processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Core {
    /// Number of the processor.
    pub id: u32,
    /// Its socket.
    pub socket: u32,
    /// Its NUMA node.
    pub node: u32,
    /// An efficiency core.
    pub efficiency: bool,
    /// Tasks must not use it.
    pub disabled: bool,
    /// Guaranteed speed in MHz; 0 = unknown.
    pub base_mhz: u64,
    /// Top speed in MHz; 0 = unknown.
    pub max_mhz: u64,
    /// An estimated speed in MHz, if nothing else is known.
    pub guess_mhz: u64,
}

/// The node's processors. Drivers compute shares from it, and some crash without it, so it always has a core.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Topology {
    /// The cores.
    pub cores: Vec<Core>,
    /// Distances between NUMA nodes, by node; empty = one node.
    pub distances: Vec<Vec<u32>>,
    /// The operator's total in MHz; 0 = none.
    pub override_total_mhz: u64,
    /// MHz that the operator reserves.
    pub override_withheld_mhz: u64,
}

impl Topology {
    /// `cores` equal cores.
    pub fn uniform(cores: u32, mhz: u64) -> Self {
        let core = |id| Core { id, base_mhz: mhz, ..Core::default() };
        Self { cores: (0..cores).map(core).collect(), ..Self::default() }
    }

    pub(crate) fn wire(&self) -> base::ClientTopology {
        let n = self.distances.len();
        let square = n > 0 && self.distances.iter().all(|row| row.len() == n);
        // Plugins index the matrix without a check: it must be square.
        let (dimension, values) = if square { (n as u32, self.distances.concat()) } else { (1, vec![10]) };
        let placeholder = [Core { guess_mhz: 1000, ..Core::default() }];
        let cores = if self.cores.is_empty() { &placeholder[..] } else { &self.cores };
        let core = |core: &Core| base::ClientTopologyCore {
            socket_id: core.socket,
            node_id: core.node,
            core_id: core.id,
            core_grade: if core.efficiency { base::CoreGrade::Efficiency } else { base::CoreGrade::Performance } as i32,
            disable: core.disabled,
            base_speed: core.base_mhz,
            max_speed: core.max_mhz,
            guess_speed: core.guess_mhz,
        };
        base::ClientTopology {
            node_ids: (0..dimension).collect(),
            distances: Some(base::ClientTopologySlit { dimension, values }),
            cores: cores.iter().map(core).collect(),
            override_total_compute: self.override_total_mhz,
            override_withold_compute: self.override_withheld_mhz,
        }
    }
}

/// The agent's settings for plugins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// Lowest port for listeners of plugins and executors.
    pub port_min: u16,
    /// Highest such port.
    pub port_max: u16,
    /// The processors.
    pub topology: Topology,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self { port_min: MIN_PORT_DEFAULT, port_max: MAX_PORT_DEFAULT, topology: Topology::default() }
    }
}

/// Deadlines and delays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// From the start of a process to its handshake.
    pub handshake: Duration,
    /// For each call of the set-up.
    pub setup_call: Duration,
    /// For StartTask; the driver may have to fetch images.
    pub start_task: Duration,
    /// For RecoverTask, DestroyTask and network calls; also added to the own timeouts of StopTask and ExecTask.
    pub task_call: Duration,
    /// For InspectTask and SignalTask.
    pub short_call: Duration,
    /// From the order to end until SIGKILL.
    pub stop_grace: Duration,
    /// Interval of the watchdog's questions to the plugin.
    pub watchdog_interval: Duration,
    /// A plugin that does not answer one within this time gets a strike. After three in a row the host replaces its
    /// process.
    pub watchdog_deadline: Duration,
    /// After a broken connection: how long until the process's death is visible.
    pub death_race: Duration,
    /// Delay before the second relaunch in a row; it doubles.
    pub relaunch_first: Duration,
    /// Longest delay between relaunches.
    pub relaunch_max: Duration,
    /// A process that lived this long has a clean record.
    pub stable_after: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(60),
            setup_call: Duration::from_secs(30),
            start_task: Duration::from_secs(15 * 60),
            task_call: Duration::from_secs(60),
            short_call: Duration::from_secs(15),
            stop_grace: Duration::from_secs(2),
            watchdog_interval: Duration::from_secs(20),
            watchdog_deadline: Duration::from_secs(20),
            death_race: Duration::from_secs(3),
            relaunch_first: Duration::from_millis(500),
            relaunch_max: Duration::from_secs(60),
            stable_after: Duration::from_secs(60),
        }
    }
}

/// Everything a host needs.
#[derive(Debug, Clone, PartialEq)]
pub struct HostOptions {
    /// The plugins.
    pub plugins: Vec<PluginSpec>,
    /// Sockets of plugins, and of executors that outlive them: a short path, made 0700, never removed.
    pub socket_dir: PathBuf,
    /// Reattachment records and log pipes.
    pub state_dir: PathBuf,
    /// The agent's settings for plugins.
    pub agent: AgentConfig,
    /// Deadlines and delays.
    pub timing: Timing,
    /// Drivers whose processes of a former agent must end: such a process may still be working on a start whose outcome
    /// the agent does not know.
    pub anew: BTreeSet<String>,
}

impl HostOptions {
    /// With the default timing.
    pub fn new(plugins: Vec<PluginSpec>, socket_dir: impl Into<PathBuf>, state_dir: impl Into<PathBuf>) -> Self {
        Self {
            plugins,
            socket_dir: socket_dir.into(),
            state_dir: state_dir.into(),
            agent: AgentConfig::default(),
            timing: Timing::default(),
            anew: BTreeSet::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_configured_executables_are_run() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = |name: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, "").expect("write");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        };
        for (name, mode) in [("used", 0o755), ("windows.exe", 0o755), ("unused", 0o755), ("plain", 0o644)] {
            file(name, mode);
        }
        std::os::unix::fs::symlink(dir.path().join("used"), dir.path().join("link")).expect("link");
        std::os::unix::fs::symlink("/nonexistent", dir.path().join("dangling")).expect("link");
        std::fs::create_dir(dir.path().join("directory")).expect("directory");
        let names = ["used", "windows", "plain", "link", "dangling", "directory", "missing"];
        let block = |name: &str| PluginBlock { args: vec![name.to_owned()], config: None };
        let blocks = names.map(|name| (name.to_owned(), block(name))).into();
        let (specs, notes) = discover(Some(dir.path()), &blocks).expect("readable");
        let found: BTreeMap<&str, (&Path, &str)> =
            specs.iter().map(|spec| (spec.name.as_str(), (spec.command.as_path(), spec.args[0].as_str()))).collect();
        for name in names {
            let file = if name == "windows" { "windows.exe" } else { name };
            assert_eq!(found[name], (&*dir.path().join(file), name), "also what cannot be started has a status");
        }
        assert!(matches!(&notes[..], [note] if note.contains("unused\" is not run")), "{notes:?}");
        assert!(discover(Some(Path::new("/nonexistent")), &blocks).is_err());
        let (specs, notes) = discover(None, &blocks).expect("nothing to read");
        assert!(
            specs.len() == blocks.len()
                && specs.iter().all(|spec| spec.command.as_os_str().is_empty())
                && notes.is_empty()
        );
    }

    #[test]
    fn a_topology_always_has_a_core_and_a_square_matrix() {
        let ragged = Topology { distances: vec![vec![10, 20], vec![20]], ..Topology::default() };
        let square = Topology { distances: vec![vec![10, 20], vec![20, 10]], ..Topology::uniform(4, 2000) };
        for (topology, cores, dimension) in [(Topology::default(), 1, 1), (ragged, 1, 1), (square, 4, 2)] {
            let wire = topology.wire();
            let distances = wire.distances.expect("distances");
            assert_eq!((wire.cores.len(), distances.dimension), (cores, dimension));
            assert_eq!(distances.values.len() as u32, dimension * dimension);
            assert!(wire.cores.iter().all(|c| c.base_speed + c.max_speed + c.guess_speed > 0));
        }
    }
}
