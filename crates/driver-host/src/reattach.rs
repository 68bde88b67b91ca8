//! Records of plugins' processes, for a restart of the agent.

use std::fmt::Write as _;
use std::io;
use std::os::unix::{ffi::OsStrExt, fs::MetadataExt};
use std::path::Path;

use driver_proto::handshake::Address;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::options::{AgentConfig, PluginSpec};
use crate::process::Process;
use crate::records::Records;
use crate::stat::{Birth, boot_id};

const VERSION: u32 = 1;
const RECORDS: Records = Records(".reattach.json");

/// Reattach config of a running plugin, with proof of its identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    version: u32,
    pub(crate) plugin: String,
    /// Empty until the plugin is configured.
    pub(crate) driver: String,
    network: String,
    addr: String,
    pub(crate) pid: u32,
    pub(crate) birth: Birth,
    boot_id: String,
    /// Digest of program file, arguments and configuration: a changed plugin is not kept.
    pub(crate) digest: String,
}

impl Record {
    /// The record of a new process; `None` when it has ended already.
    pub(crate) fn new(plugin: &str, process: &Process, digest: String) -> Option<Self> {
        Some(Self {
            version: VERSION,
            plugin: plugin.to_owned(),
            driver: String::new(),
            network: String::new(),
            addr: String::new(),
            pid: process.pid,
            birth: Birth::of(process.pid)?,
            boot_id: boot_id(),
            digest,
        })
    }

    /// Marks it as configured and ready for calls.
    pub(crate) fn ready(self, driver: &str, address: &Address) -> Self {
        Self {
            driver: driver.to_owned(),
            network: address.network().to_owned(),
            addr: address.addr().to_owned(),
            ..self
        }
    }

    /// Whether the set-up was finished; a process without it is useless and has to end.
    pub(crate) fn is_ready(&self) -> bool {
        !self.driver.is_empty()
    }

    pub(crate) fn address(&self) -> Address {
        if self.network == "tcp" { Address::Tcp(self.addr.clone()) } else { Address::Unix(self.addr.clone()) }
    }

    /// Whether the record is from this boot; pids of an earlier boot mean nothing.
    pub(crate) fn of_this_boot(&self) -> bool {
        !self.boot_id.is_empty() && self.boot_id == boot_id()
    }
}

/// Identity of the plugin's command and configuration, the same in every build of the agent. Equal digests mean that a
/// running process still matches the operator's wish.
pub(crate) fn digest(spec: &PluginSpec, agent: &AgentConfig) -> String {
    let mut hasher = Sha256::new();
    let mut put = |part: &[u8]| {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    put(spec.command.as_os_str().as_bytes());
    put(&spec.args.len().to_le_bytes());
    spec.args.iter().for_each(|arg| put(arg.as_bytes()));
    put(&spec.env.len().to_le_bytes());
    spec.env.iter().for_each(|(name, value)| {
        put(name.as_bytes());
        put(value.as_bytes());
    });
    put(&agent.port_min.to_le_bytes());
    put(&agent.port_max.to_le_bytes());
    put(spec.config.as_ref().map(serde_json::Value::to_string).unwrap_or_default().as_bytes());
    if let Ok(meta) = std::fs::metadata(&spec.command) {
        for number in
            [meta.dev(), meta.ino(), meta.len(), meta.mtime().cast_unsigned(), meta.mtime_nsec().cast_unsigned()]
        {
            put(&number.to_le_bytes());
        }
    }
    hasher.finalize().iter().take(16).fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The record of a plugin; one of another format or plugin counts as none.
pub(crate) fn load(dir: &Path, plugin: &str) -> Option<Record> {
    let record: Record = RECORDS.load(dir, plugin)?;
    (record.version == VERSION && record.plugin == plugin).then_some(record)
}

/// Writes atomically.
pub(crate) fn save(dir: &Path, record: &Record) -> io::Result<()> {
    RECORDS.save(dir, &record.plugin, record)
}

/// Deletes the record of a plugin's process.
pub(crate) fn remove(dir: &Path, plugin: &str) {
    RECORDS.remove(dir, plugin);
}

/// Names of all plugins that have a record.
pub(crate) fn recorded(dir: &Path) -> Vec<String> {
    RECORDS.plugins(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_covers_program_arguments_and_configuration() {
        let dir = std::env::temp_dir().join(format!("drover-digest-{}", std::process::id()));
        std::fs::write(&dir, "one").expect("write");
        let base = PluginSpec { name: "p".into(), command: dir.clone(), ..PluginSpec::default() };
        let agent = AgentConfig::default();
        let first = digest(&base, &agent);
        assert_eq!(first, digest(&base, &agent));
        let args = PluginSpec { args: vec!["-x".into()], ..base.clone() };
        let config = PluginSpec { config: Some(serde_json::json!({"a": 1})), ..base.clone() };
        let ports = AgentConfig { port_min: 1, ..agent.clone() };
        let changed = [digest(&args, &agent), digest(&config, &agent), digest(&base, &ports)];
        std::fs::write(&dir, "longer").expect("write");
        let rewritten = digest(&base, &agent);
        std::fs::remove_file(&dir).expect("remove");
        for other in changed.into_iter().chain([rewritten]) {
            assert_ne!(first, other);
        }
    }
}
