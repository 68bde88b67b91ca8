//! One network with a switch of its own: every server, every member of etcd, every node and every host hangs on a line
//! that can be cut, and from each of them the way to any other can be lost alone.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::{
    interop::sshd::{ip, remove_namespace},
    process::Run,
};

pub(super) const SERVERS: [&str; 3] = ["s0", "s1", "s2"];
pub(super) const MEMBERS: [&str; 3] = ["e0", "e1", "e2"];
pub(super) const NODES: [&str; 3] = ["n0", "n1", "n2"];
/// Where remote tasks run; nodes reach them by ssh.
pub(super) const HOSTS: [&str; 2] = ["h0", "h1"];

/// Everybody on the network but the clients.
pub(super) fn everybody() -> impl Iterator<Item = &'static str> {
    SERVERS.into_iter().chain(MEMBERS).chain(NODES).chain(HOSTS)
}

/// Nobody has it: what is sent there arrives nowhere, and nobody says so.
const NOWHERE: &str = "02:00:00:00:00:01";

/// The network; gone when dropped, with everything that lives in its namespaces.
pub(super) struct Net {
    process: u32,
}

impl Net {
    pub(super) fn lay() -> Result<Self> {
        let net = Self::of(std::process::id());
        net.build().context("the network could not be laid")?;
        Ok(net)
    }

    /// The one of a run that was killed, to be dropped.
    pub(super) fn of(process: u32) -> Self {
        Self { process }
    }

    fn build(&self) -> Result<()> {
        let switch = self.namespace("w");
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add lan type bridge"))?;
        ip(&format!("-n {switch} link set lan up"))?;
        for name in everybody() {
            let namespace = self.namespace(name);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
            ip(&format!("-n {switch} link add l-{name} type veth peer name e0 netns {namespace}"))?;
            ip(&format!("-n {namespace} addr add {}/24 dev e0", self.address(name)))?;
            ip(&format!("-n {namespace} link set e0 up"))?;
            ip(&format!("-n {switch} link set l-{name} master lan up"))?;
        }
        // The clients live where this program does.
        let line = format!("dc{}", self.process);
        ip(&format!("link add {line} type veth peer name l-here netns {switch}"))?;
        ip(&format!("addr add {}/24 dev {line}", self.address("here")))?;
        ip(&format!("link set {line} up"))?;
        ip(&format!("-n {switch} link set l-here master lan up"))
    }

    /// The network namespace of a member; `w` is the switch.
    pub(super) fn namespace(&self, name: &str) -> String {
        format!("dc{}{name}", self.process)
    }

    pub(super) fn address(&self, name: &str) -> String {
        let number = everybody().position(|other| other == name).map_or(1, |at| 11 + at);
        // Runs beside each other must not meet.
        format!("10.{}.{}.{number}", 128 + self.process / 256 % 32, self.process % 256)
    }

    /// Cuts somebody off from everybody.
    pub(super) fn cut(&self, name: &str) -> Result<()> {
        ip(&format!("-n {} link set l-{name} down", self.namespace("w")))
    }

    pub(super) fn mend(&self, name: &str) -> Result<()> {
        ip(&format!("-n {} link set l-{name} up", self.namespace("w")))
    }

    /// What one sends to the other is lost from now on; the way back is open.
    pub(super) fn block(&self, from: &str, to: &str) -> Result<()> {
        let (namespace, to) = (self.namespace(from), self.address(to));
        ip(&format!("-n {namespace} neigh replace {to} lladdr {NOWHERE} dev e0 nud permanent"))
    }

    pub(super) fn unblock(&self, from: &str, to: &str) -> Result<()> {
        let (namespace, to) = (self.namespace(from), self.address(to));
        ip(&format!("-n {namespace} neigh del {to} dev e0"))
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in everybody().chain(["w"]) {
            let namespace = self.namespace(name);
            let file: PathBuf = Path::new("/run/netns").join(&namespace);
            if file.exists() {
                remove_namespace(&namespace);
            }
        }
        // A process on its way out may still hold the namespace of the other end.
        drop(Run::new("ip", ["link", "del", &format!("dc{}", self.process)]).quiet().run());
    }
}
