//! Servers of ssh in network namespaces: keys, configuration, start; and what `remote_exec` is told of them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Result;

use crate::{
    local::{BOUND, kill, until},
    packages::Wanted,
    process::Run,
};

/// Where they listen.
pub(crate) const PORT: u16 = 2222;
/// What is needed for them, and to reach them.
pub(crate) const PACKAGES: [Wanted; 4] = [
    Wanted::new("ip", "iproute2"),
    Wanted::new("/usr/sbin/sshd", "openssh-server"),
    Wanted::new("ssh", "openssh-client"),
    Wanted::new("ssh-keygen", "openssh-client"),
];

/// Runs `ip` with these arguments, apart by blanks.
pub(crate) fn ip(args: &str) -> Result<()> {
    Run::new("ip", args.split(' ')).run()
}

/// Makes keys of these names in `keys` of the directory, `client`'s is the one that hosts let in.
pub(crate) fn keys(dir: &Path, names: &[&str]) -> Result<()> {
    fs::create_dir_all(dir.join("keys"))?;
    for name in names {
        let file = dir.join("keys").join(name);
        Run::new(
            "ssh-keygen",
            [
                "-q".as_ref(),
                "-t".as_ref(),
                "ed25519".as_ref(),
                "-N".as_ref(),
                "".as_ref(),
                "-f".as_ref(),
                file.as_os_str(),
            ],
        )
        .run()?;
    }
    fs::copy(dir.join("keys/client.pub"), dir.join("keys/authorized"))?;
    fs::create_dir_all("/run/sshd")?;
    Ok(())
}

/// Writes down which host has which key, and how all are reached.
pub(crate) fn know_hosts(dir: &Path, hosts: &[(&str, String)]) -> Result<()> {
    let mut text = String::new();
    for (host, address) in hosts {
        let key = fs::read_to_string(dir.join(format!("keys/{host}.pub")))?;
        text.push_str(&format!("[{address}]:{PORT} {key}"));
    }
    fs::write(dir.join("keys/known_hosts"), text)?;
    let config = format!(
        "Host *\n  User root\n  Port {PORT}\n  IdentitiesOnly yes\n  IdentityFile {0}/keys/client\n  \
            UserKnownHostsFile {0}/keys/known_hosts\n  StrictHostKeyChecking yes\n",
        dir.display()
    );
    Ok(fs::write(dir.join("ssh_config"), config)?)
}

/// What a node is told of hosts that all have room: name, address and directory of each.
pub(crate) fn plugin<'a>(dir: &Path, hosts: impl IntoIterator<Item = (&'a str, String, PathBuf)>) -> String {
    let host = |(name, address, dir): (&str, String, PathBuf)| {
        format!(
            "    host {name:?} {{\n      address = {address:?}\n      dir = {dir:?}\n      capacity {{\n        \
                sessions = 40\n      }}\n    }}\n"
        )
    };
    let hosts: String = hosts.into_iter().map(host).collect();
    format!(
        "plugin \"remote_exec\" {{\n  config {{\n    transport = \"ssh\"\n    pool = \"chaos\"\n    ssh_config \
            = \"{0}/ssh_config\"\n    known_hosts = \"{0}/keys/known_hosts\"\n    keepalive_seconds = 2\n{hosts}  \
            }}\n}}\n",
        dir.display()
    )
}

/// Starts a server for a host with one of the keys, and waits until it listens.
pub(crate) fn start(dir: &Path, namespace: &str, host: &str, key: &str, address: &str) -> Result<Child> {
    let config = dir.join(format!("sshd-{host}"));
    fs::write(
        &config,
        format!(
            "Port {PORT}\nListenAddress {address}\nHostKey {0}/keys/{key}\nAuthorizedKeysFile \
                {0}/keys/authorized\nStrictModes no\nUsePAM no\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPidFile \
             none\nPrintMotd no\n\
             Banner {0}/banner\n",
            dir.display()
        ),
    )?;
    fs::write(dir.join("banner"), "Authorised use only!\n")?;
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("sshd.log"))?;
    let child = Command::new("ip")
        .args(["netns", "exec", namespace, "/usr/sbin/sshd", "-D", "-e", "-f"])
        .arg(&config)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    until("a listening sshd", BOUND, || {
        // A process's view of its namespace's sockets; it is there as soon as the program is.
        let sockets = fs::read_to_string(format!("/proc/{}/net/tcp", child.id()))?;
        let program = fs::read_to_string(format!("/proc/{}/comm", child.id()))?;
        let listens = sockets.lines().any(|l| l.contains(&format!(":{PORT:04X} ")) && l.contains(" 0A "));
        Ok((listens && program.trim() == "sshd").then_some(()))
    })?;
    Ok(child)
}

/// Processes that live in a network namespace.
pub(crate) fn inhabitants(namespace: &str) -> Vec<u32> {
    let inside = Run::new("ip", ["netns", "pids", namespace]).output().unwrap_or_default();
    inside.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Processes that live in a network namespace and have such a command line.
fn inhabitants_like(namespace: &str, like: impl Fn(&str) -> bool) -> Vec<u32> {
    let command = |pid: &u32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    inhabitants(namespace).into_iter().filter(|pid| like(&command(pid))).collect()
}

/// The listener of a namespace and the connections that it has, which live on in processes of their own without it.
pub(crate) fn servers(namespace: &str) -> Vec<u32> {
    inhabitants_like(namespace, |command| command.starts_with("sshd") || command.starts_with("/usr/sbin/sshd"))
}

/// Channels on the host of a namespace: what carries out a manager's calls.
pub(crate) fn channels(namespace: &str) -> Vec<u32> {
    inhabitants_like(namespace, |command| command.contains("serve-host"))
}

/// SIGKILL for all [`servers`] of a namespace. Afterwards the next one can listen.
pub(crate) fn end_all(namespace: &str) -> Result<()> {
    until("an end of the servers of ssh", BOUND, || {
        let left = servers(namespace);
        left.iter().try_for_each(|pid| kill(*pid))?;
        Ok(left.is_empty().then_some(()))
    })
}

/// Ends a network namespace with what lives in it; its lines go with it.
pub(crate) fn remove_namespace(namespace: &str) {
    for pid in inhabitants(namespace) {
        drop(kill(pid));
    }
    drop(Run::new("ip", ["netns", "del", namespace]).quiet().run());
}
