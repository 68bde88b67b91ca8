//! Two networks with a switch of their own: one of the server and the nodes, one of the nodes and the providers. Every
//! member hangs on a line that can be cut, so that a node loses the servers, the providers, or a provider loses
//! everybody.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::interop::sshd::{ip, remove_namespace};

/// Hosts that are reached by ssh.
pub(super) const HOSTS: [&str; 3] = ["a", "b", "c"];
/// Nodes that manage.
pub(super) const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// The networks; gone when dropped, with everything that lives in their namespaces.
pub(super) struct Net {
    process: u32,
}

impl Net {
    pub(super) fn lay() -> Result<Self> {
        let net = Self::of(std::process::id());
        net.build().context("the networks could not be laid")?;
        Ok(net)
    }

    /// The one of a run that was killed, to be dropped.
    pub(super) fn of(process: u32) -> Self {
        Self { process }
    }

    fn build(&self) -> Result<()> {
        let switch = self.namespace("w");
        ip(&format!("netns add {switch}"))?;
        for bridge in ["control", "providers"] {
            ip(&format!("-n {switch} link add {bridge} type bridge"))?;
            ip(&format!("-n {switch} link set {bridge} up"))?;
        }
        for name in HOSTS.iter().chain(&NODES) {
            let namespace = self.namespace(name);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        for name in NODES {
            self.join(name, "c", &self.control(name))?;
            self.join(name, "p", &self.provider(name))?;
        }
        for name in HOSTS {
            self.join(name, "p", &self.provider(name))?;
        }
        // The server and the engine live where this program does.
        self.join_here("server", "c", &self.control("server"))?;
        self.join_here("engine", "p", &self.provider("engine"))
    }

    fn plug(&self, name: &str, side: &str) -> Result<()> {
        let bridge = if side == "c" { "control" } else { "providers" };
        ip(&format!("-n {} link set {side}-{name} master {bridge} up", self.namespace("w")))
    }

    fn join(&self, name: &str, side: &str, address: &str) -> Result<()> {
        let (switch, namespace) = (self.namespace("w"), self.namespace(name));
        ip(&format!("-n {switch} link add {side}-{name} type veth peer name {side}0 netns {namespace}"))?;
        ip(&format!("-n {namespace} addr add {address}/25 dev {side}0"))?;
        ip(&format!("-n {namespace} link set {side}0 up"))?;
        self.plug(name, side)
    }

    fn join_here(&self, name: &str, side: &str, address: &str) -> Result<()> {
        let line = format!("dv{}-{side}", self.process);
        ip(&format!("link add {line} type veth peer name {side}-{name} netns {}", self.namespace("w")))?;
        ip(&format!("addr add {address}/25 dev {line}"))?;
        ip(&format!("link set {line} up"))?;
        self.plug(name, side)
    }

    /// The network namespace of a member; `w` is the switch.
    pub(super) fn namespace(&self, name: &str) -> String {
        format!("dv{}{name}", self.process)
    }

    /// Where namespaces have their names.
    pub(super) fn namespace_file(&self, name: &str) -> PathBuf {
        Path::new("/run/netns").join(self.namespace(name))
    }

    fn address(&self, number: usize) -> String {
        // Runs beside each other must not meet.
        format!("10.{}.{}.{number}", 96 + self.process / 256 % 32, self.process % 256)
    }

    /// A member's address among servers and nodes.
    pub(super) fn control(&self, name: &str) -> String {
        self.address(NODES.iter().position(|n| *n == name).map_or(1, |at| 11 + at))
    }

    /// A member's address among nodes and providers.
    pub(super) fn provider(&self, name: &str) -> String {
        let of = |all: &[&str], base: usize| all.iter().position(|n| *n == name).map(|at| base + at);
        self.address(of(&NODES, 151).or_else(|| of(&HOSTS, 141)).unwrap_or(129))
    }

    /// Cuts or mends a member's line: `c-n1` to the servers, `p-n1` to the providers, `p-a` a host's, `p-engine` the
    /// engine's.
    pub(super) fn set_line(&self, line: &str, state: &str) -> Result<()> {
        ip(&format!("-n {} link set {line} {state}", self.namespace("w")))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in HOSTS.iter().chain(&NODES).chain(&["w"]) {
            if self.namespace_file(name).exists() {
                remove_namespace(&self.namespace(name));
            }
        }
    }
}
