//! Configuration of the plugin and of a task.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::{DriverConfig, Error};
use executor_client::host::HostAmount;

/// The operator's `plugin "remote_exec" { config { … } }`.
#[derive(Clone, Debug, PartialEq, Eq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct PluginConfig {
    /// How the runtime is reached: `local`, a directory of this machine that belongs to no node, or `ssh`.
    #[config(default = "local")]
    transport: String,
    /// Directory of the local runtime, an absolute path; without it the driver offers nothing.
    pub(crate) root: Option<PathBuf>,
    /// Processors of the local runtime in MHz, as the scheduler packs them; 0 declares nothing.
    #[config(default = 0)]
    pub(crate) pool_cpu_mhz: u64,
    /// Memory of the local runtime in MiB, as the scheduler packs it; 0 declares nothing.
    #[config(default = 0)]
    pub(crate) pool_memory_mib: u64,
    /// Name of the hosts together: the same on every node with the same hosts. `ssh` needs it.
    pool: Option<String>,
    /// The program `ssh`; the one along `PATH` without it.
    ssh: Option<PathBuf>,
    /// Configuration file for ssh; the user's without it.
    ssh_config: Option<PathBuf>,
    /// File with the keys of hosts; the user's without it.
    known_hosts: Option<PathBuf>,
    /// Which keys of hosts are trusted: `strict`, those of `known_hosts`, or `accept-new`, also those of hosts never
    /// seen. Strict without it.
    host_keys: Option<String>,
    /// A host that has not said a word for so long is given up until it is reached again; 0 means ten seconds.
    #[config(default = 0)]
    keepalive_seconds: u64,
    /// The hosts that ssh reaches.
    host: BTreeMap<String, HostConfig>,
}

/// One `host "name" { … }` of the inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct HostConfig {
    /// What ssh is told; the block's name without it.
    pub(crate) address: Option<String>,
    /// Port; what ssh's configuration says without it.
    #[config(default = 0)]
    pub(crate) port: u16,
    /// User on the host; what ssh's configuration says without it.
    pub(crate) user: Option<String>,
    /// File with the private key; it must not ask for a passphrase.
    pub(crate) identity_file: Option<PathBuf>,
    /// Hosts to go through, as `ssh -J` takes them.
    pub(crate) jump: Option<String>,
    /// Further options for ssh, `NAME=VALUE`.
    pub(crate) ssh_options: Option<Vec<String>>,
    /// Directory of the runtime on the host, below the login directory unless absolute.
    pub(crate) dir: Option<String>,
    /// What tasks can choose the host by.
    pub(crate) labels: BTreeMap<String, String>,
    /// What the host offers to tasks.
    pub(crate) capacity: Option<Capacity>,
}

/// What a host offers to tasks; 0 = not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, DriverConfig)]
#[config(default)]
pub(crate) struct Capacity {
    /// Processors in MHz; 0 means no limit.
    #[config(default = 0)]
    pub(crate) cpu: u64,
    /// Memory in MiB; 0 means no limit.
    #[config(default = 0)]
    pub(crate) memory: u64,
    /// Tasks at a time; 0 means no limit.
    #[config(default = 0)]
    pub(crate) sessions: u64,
}

impl HostConfig {
    pub(crate) fn capacity(&self) -> HostAmount {
        let Capacity { cpu, memory, sessions } = self.capacity.unwrap_or_default();
        HostAmount { cpu_mhz: cpu, memory_mib: memory, sessions }
    }

    /// All that says which directory of which machine it is, and through which others: two names with the same are one
    /// host. `name` is the block's.
    pub(crate) fn reached_by(&self, name: &str) -> impl Ord + use<> {
        let address = self.address.clone().unwrap_or_else(|| name.to_owned());
        (address, self.port, self.user.clone(), self.dir.clone(), self.jump.clone(), self.ssh_options.clone())
    }

    /// Whether the host has all of these labels.
    pub(crate) fn has(&self, labels: &BTreeMap<String, String>) -> bool {
        labels.iter().all(|(name, value)| self.labels.get(name) == Some(value))
    }
}

/// How the runtime is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Nothing is configured.
    None,
    /// A directory of this machine that belongs to no node.
    Local(PathBuf),
    /// Hosts over ssh.
    Ssh(Inventory),
}

/// The hosts of one pool and how ssh is called for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inventory {
    /// Identity of the provider: equal names mean equal inventories.
    pub(crate) pool: String,
    pub(crate) ssh: PathBuf,
    pub(crate) ssh_config: Option<PathBuf>,
    pub(crate) known_hosts: Option<PathBuf>,
    /// Take the key of a host that is not known yet. A changed one is never taken.
    pub(crate) accept_new: bool,
    /// A host that has not said a word for so long is given up until it is reached again.
    pub(crate) keepalive: Duration,
    pub(crate) hosts: BTreeMap<String, HostConfig>,
}

const DEFAULT_KEEPALIVE: Duration = Duration::from_secs(10);

/// Options that decide whom we trust and whether a person is asked: they have settings of their own, or none.
const RESERVED: [&str; 6] =
    ["stricthostkeychecking", "batchmode", "userknownhostsfile", "requesttty", "controlmaster", "controlpath"];

impl PluginConfig {
    /// Checks what the schema cannot.
    pub(crate) fn transport(&self) -> Result<Transport, Error> {
        match self.transport.as_str() {
            "local" => self.local(),
            "ssh" => self.inventory().map(Transport::Ssh),
            other => Err(Error::invalid(format!("transport {other:?} is not known; use \"local\" or \"ssh\""))),
        }
    }

    fn local(&self) -> Result<Transport, Error> {
        let set = [
            ("pool", self.pool.is_some()),
            ("ssh", self.ssh.is_some()),
            ("ssh_config", self.ssh_config.is_some()),
            ("known_hosts", self.known_hosts.is_some()),
            ("host_keys", self.host_keys.is_some()),
            ("keepalive_seconds", self.keepalive_seconds > 0),
            ("host", !self.host.is_empty()),
        ];
        if let Some((name, _)) = set.iter().find(|(_, set)| *set) {
            return Err(Error::invalid(format!(
                "{name} means nothing to transport \"local\"; remove it or use transport \"ssh\""
            )));
        }
        match &self.root {
            Some(root) if !root.is_absolute() => Err(Error::invalid(format!(
                "root {:?} is not an absolute path; name the directory of the runtime",
                root.display()
            ))),
            Some(root) => Ok(Transport::Local(root.clone())),
            None => Ok(Transport::None),
        }
    }

    fn inventory(&self) -> Result<Inventory, Error> {
        if self.root.is_some() {
            return Err(Error::invalid("root means nothing to transport \"ssh\"; a host's directory is its `dir`"));
        }
        if self.pool_cpu_mhz > 0 || self.pool_memory_mib > 0 {
            return Err(Error::invalid(
                "pool_cpu_mhz and pool_memory_mib belong to transport \"local\"; with \"ssh\" give each host its \
                    capacity",
            ));
        }
        let pool = self.pool.clone().unwrap_or_default();
        if !is_name(&pool) {
            return Err(Error::invalid(format!(
                "pool {pool:?} is no name; transport \"ssh\" needs one of letters, digits, '-', '_' and '.', the same \
                    on every node with the same hosts"
            )));
        }
        if self.host.is_empty() {
            return Err(Error::invalid("transport \"ssh\" needs at least one block host \"name\" { … }"));
        }
        for (name, host) in &self.host {
            host.check(name)?;
        }
        let accept_new = match self.host_keys.as_deref().unwrap_or("strict") {
            "strict" => false,
            "accept-new" => true,
            other => {
                return Err(Error::invalid(format!(
                    "host_keys {other:?} is not known; use \"strict\" (only keys of known_hosts) or \"accept-new\" \
                        (also of hosts never seen)"
                )));
            }
        };
        let keepalive = match self.keepalive_seconds {
            0 => DEFAULT_KEEPALIVE,
            seconds @ 1..=120 => Duration::from_secs(seconds),
            seconds => return Err(Error::invalid(format!("keepalive_seconds is {seconds}; it may be 1 to 120"))),
        };
        Ok(Inventory {
            pool,
            ssh: self.ssh.clone().unwrap_or_else(|| "ssh".into()),
            ssh_config: self.ssh_config.clone(),
            known_hosts: self.known_hosts.clone(),
            accept_new,
            keepalive,
            hosts: self.host.clone(),
        })
    }
}

impl HostConfig {
    fn check(&self, name: &str) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::invalid(format!("host {name:?}: {what}")));
        if !is_name(name) {
            return wrong("its name may hold letters, digits, '-', '_' and '.'".into());
        }
        for (what, value) in [("address", &self.address), ("user", &self.user), ("jump", &self.jump)] {
            if value.as_ref().is_some_and(|v| {
                v.is_empty() || v.starts_with('-') || v.contains(|c: char| c.is_whitespace() || c.is_control())
            }) {
                return wrong(format!("{what} is empty, begins with '-' or holds blanks"));
            }
        }
        for option in self.ssh_options.iter().flatten() {
            let key = option.split(['=', ' ']).next().unwrap_or_default().to_ascii_lowercase();
            if RESERVED.contains(&&*key) {
                return wrong(format!(
                    "ssh_options sets {key}, which is decided by known_hosts and host_keys or by the driver"
                ));
            }
            if !option.contains('=') {
                return wrong(format!("ssh_options holds {option:?}, which is not NAME=VALUE"));
            }
        }
        let dir = self.dir.as_deref().unwrap_or(".drover");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./+@=,".contains(c);
        // It goes through a shell whose kind nobody knows.
        if dir.is_empty() || dir.starts_with('-') || !dir.chars().all(plain) {
            return wrong(format!("dir {dir:?} is no path of letters, digits and any of -_./+@=,"));
        }
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(['-', '.'])
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// A task's `config { … }`.
#[derive(Clone, Debug, PartialEq, Eq, DriverConfig)]
#[config(default, impl_default)]
pub(crate) struct TaskOptions {
    /// Program to run on the host: a path, or a name that is looked for along its `PATH`.
    #[config(required)]
    pub(crate) command: String,
    /// Its arguments.
    pub(crate) args: Vec<String>,
    /// Working directory on the host: an absolute path, or one below the task's directory, which it is without this.
    pub(crate) work_dir: Option<String>,
    /// The only host that will do.
    pub(crate) host: Option<String>,
    /// Labels that the host must have.
    pub(crate) labels: BTreeMap<String, String>,
}

impl TaskOptions {
    /// Reads the options and refuses what can never work.
    pub(crate) fn read(bytes: &[u8]) -> Result<TaskOptions, Error> {
        let options = TaskOptions::decode(bytes)?;
        if options.command.is_empty() {
            return Err(Error::invalid("config.command is empty; name a program"));
        }
        Ok(options)
    }

    /// The hosts of the inventory that the task may be made on; never none.
    pub(crate) fn candidates(&self, inventory: &Inventory) -> Result<BTreeSet<String>, Error> {
        let labels = &self.labels;
        let found: BTreeSet<String> = inventory
            .hosts
            .iter()
            .filter(|(name, host)| self.host.as_ref().is_none_or(|wanted| wanted == *name) && host.has(labels))
            .map(|(name, _)| name.clone())
            .collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let known: Vec<&str> = inventory.hosts.keys().map(String::as_str).collect();
        let wanted = match (&self.host, labels.is_empty()) {
            (Some(host), true) => format!("the name {host:?}"),
            (Some(host), false) => format!("the name {host:?} and the labels {labels:?}"),
            (None, _) => format!("the labels {labels:?}"),
        };
        Err(Error::invalid(format!("no host of pool {} has {wanted}; there are {}", inventory.pool, known.join(", "))))
    }
}

#[cfg(test)]
mod tests {
    use driver_sdk::reference::undescribed;
    use driver_sdk::schema::{attr, block, block_map, list, number, object, string};

    use super::*;

    fn config(text: &str) -> PluginConfig {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        PluginConfig::decode(rmp_serde::to_vec(&value).unwrap()).unwrap()
    }

    /// Files are written for these names, types and defaults.
    #[test]
    fn the_schemas_are_those_that_files_are_written_for() {
        let capacity = object([
            ("cpu", number().default("0")),
            ("memory", number().default("0")),
            ("sessions", number().default("0")),
        ]);
        let host = object([
            ("address", string()),
            ("port", number().default("0")),
            ("user", string()),
            ("identity_file", string()),
            ("jump", string()),
            ("ssh_options", list("string")),
            ("dir", string()),
            ("labels", attr("list(map(string))")),
            ("capacity", block(capacity)),
        ]);
        let plugin = object([
            ("transport", string().default("\"local\"")),
            ("root", string()),
            ("pool_cpu_mhz", number().default("0")),
            ("pool_memory_mib", number().default("0")),
            ("pool", string()),
            ("ssh", string()),
            ("ssh_config", string()),
            ("known_hosts", string()),
            ("host_keys", string()),
            ("keepalive_seconds", number().default("0")),
            ("host", block_map(["name"], host)),
        ]);
        assert_eq!(PluginConfig::schema().wire(), plugin.wire());
        let task = object([
            ("command", string().required()),
            ("args", list("string")),
            ("work_dir", string()),
            ("host", string()),
            ("labels", attr("list(map(string))")),
        ]);
        assert_eq!(TaskOptions::schema().wire(), task.wire());
    }

    #[test]
    fn every_option_is_described() {
        assert_eq!(undescribed(&PluginConfig::schema()), [""; 0]);
        assert_eq!(undescribed(&TaskOptions::schema()), [""; 0]);
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        assert_eq!(config("{}").transport(), Ok(Transport::None));
        assert_eq!(config(r#"{"root":"/x"}"#).transport(), Ok(Transport::Local("/x".into())));
        let good = r#"{"transport":"ssh","pool":"p","host":{"a":{}}}"#;
        assert!(matches!(config(good).transport(), Ok(Transport::Ssh(i)) if i.hosts.len() == 1 && !i.accept_new));
        for (text, named) in [
            (r#"{"transport":"telnet"}"#, "telnet"),
            (r#"{"root":"x"}"#, "root"),
            (r#"{"root":"/x","host":{"a":{}}}"#, "host"),
            (r#"{"root":"/x","known_hosts":"/k"}"#, "known_hosts"),
            (r#"{"transport":"ssh","pool":"p"}"#, "at least one"),
            (r#"{"transport":"ssh","host":{"a":{}}}"#, "pool"),
            (r#"{"transport":"ssh","pool":"p","root":"/x","host":{"a":{}}}"#, "root"),
            (r#"{"transport":"ssh","pool":"p","pool_cpu_mhz":5,"host":{"a":{}}}"#, "capacity"),
            (r#"{"transport":"ssh","pool":"p","host_keys":"no","host":{"a":{}}}"#, "host_keys"),
            (r#"{"transport":"ssh","pool":"p","keepalive_seconds":301,"host":{"a":{}}}"#, "keepalive_seconds"),
            (r#"{"transport":"ssh","pool":"p","host":{"-a":{}}}"#, "-a"),
            (r#"{"transport":"ssh","pool":"p","host":{"a":{"address":"-oProxyCommand=x"}}}"#, "address"),
            (r#"{"transport":"ssh","pool":"p","host":{"a":{"user":"x y"}}}"#, "user"),
            (
                r#"{"transport":"ssh","pool":"p","host":{"a":{"ssh_options":["StrictHostKeyChecking=no"]}}}"#,
                "stricthostkeychecking",
            ),
            (r#"{"transport":"ssh","pool":"p","host":{"a":{"ssh_options":["Compression"]}}}"#, "Compression"),
            (r#"{"transport":"ssh","pool":"p","host":{"a":{"dir":"x; rm -rf /"}}}"#, "dir"),
        ] {
            let error = config(text).transport().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
        assert!(TaskOptions::read(&[]).is_err());
    }

    #[test]
    fn candidates_have_the_name_and_all_labels() {
        let text = r#"{"transport":"ssh","pool":"p","host":{
            "a":{"labels":{"zone":"1","disk":"ssd"}}, "b":{"labels":{"zone":"1"}}, "c":{}}}"#;
        let Ok(Transport::Ssh(inventory)) = config(text).transport() else { panic!("an inventory") };
        let candidates = |host: Option<&str>, labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            let options = TaskOptions { host: host.map(str::to_owned), labels, ..TaskOptions::default() };
            options.candidates(&inventory).map(|found| found.into_iter().collect::<Vec<_>>().concat())
        };
        assert_eq!(candidates(None, &[]).unwrap(), "abc");
        assert_eq!(candidates(None, &[("zone", "1")]).unwrap(), "ab");
        assert_eq!(candidates(None, &[("zone", "1"), ("disk", "ssd")]).unwrap(), "a");
        assert_eq!(candidates(Some("b"), &[]).unwrap(), "b");
        for (host, labels) in [(Some("d"), &[][..]), (Some("c"), &[("zone", "1")]), (None, &[("zone", "2")])] {
            assert!(candidates(host, labels).unwrap_err().to_string().contains("a, b, c"));
        }
    }
}
