//! Servers of ssh in network namespaces: keys, configuration, start.

use std::{
    fs,
    path::Path,
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

/// SIGKILL for the listener of a namespace and for the connections that it has, which live on in processes of their
/// own without it. Afterwards the next one can listen.
pub(crate) fn end_all(namespace: &str) -> Result<()> {
    until("an end of the servers of ssh", BOUND, || {
        let ours = |pid: &u32| {
            let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.starts_with("sshd") || command.starts_with("/usr/sbin/sshd")
        };
        let left: Vec<u32> = inhabitants(namespace).into_iter().filter(ours).collect();
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
