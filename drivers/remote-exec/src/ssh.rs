//! How the system's ssh is called, and what runs at the far end before our program does.

use std::ffi::OsString;

use crate::config::{HostConfig, Inventory};

/// Run by `/bin/sh` on the host: finds or receives the executor of this release and becomes it. One line without
/// quotes, backslashes and exclamation marks, because a login shell of unknown kind reads it first.
///
/// What an earlier try has left half, because the host or the shell was killed, is removed: the name says which process
/// of which host wrote it (home directories may be shared by hosts).
///
/// `$1` nonce, `$2` directory, `$3` file name, `$4` size, `$5` SHA-256.
const BOOTSTRAP: &str = "\
umask 077; \
say() { echo; echo DROVER $n $*; }; \
fail() { say FAILED $*; exit 1; }; \
n=$1; f=executors/$3; \
mkdir -p $2/executors || fail cannot make the directory $2 on the host; \
cd $2 || fail cannot use the directory $2 on the host; \
good() { test -f $1 && test $(wc -c < $1) -eq $2 || return 1; \
command -v sha256sum > /dev/null 2>&1 || return 0; \
set -- $(sha256sum $1) $3; test $1 = $3; }; \
if good $f $4 $5; then :; else \
h=$(uname -n); t=executors/.$3.$h.$$; \
for p in executors/.drover-executor-*.$h.*; do kill -0 ${p##*.} 2> /dev/null || rm -f $p; done; \
say SEND $(uname -m); \
head -c $4 > $t || { rm -f $t; fail cannot store the executor in $2/executors on the host; }; \
good $t $4 $5 || { rm -f $t; fail the executor did not arrive whole in $2/executors on the host; }; \
chmod 700 $t && { sync $t 2> /dev/null || sync; } && mv -f $t $f || { rm -f $t; fail cannot store the executor in \
$2/executors on the host; }; \
fi; \
v=$(./$f version 2>&1) || fail cannot run the executor in $2/executors on the host, is it mounted noexec: $v; \
exec ./$f serve-host . $n";

/// What distinguishes one release's executor from another's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Binary<'a> {
    pub(crate) name: &'a str,
    pub(crate) size: usize,
    pub(crate) sha256: &'a str,
}

/// The command that the host's login shell is given.
pub(crate) fn remote_command(dir: &str, nonce: &str, binary: Binary<'_>) -> String {
    format!("exec /bin/sh -c '{BOOTSTRAP}' drover {nonce} {dir} {} {} {}", binary.name, binary.size, binary.sha256)
}

/// Arguments of ssh for one host.
pub(crate) fn arguments(inventory: &Inventory, name: &str, host: &HostConfig, command: &str) -> Vec<OsString> {
    let mut args: Vec<OsString> = Vec::new();
    if let Some(file) = &inventory.ssh_config {
        args.extend(["-F".into(), file.into()]);
    }
    args.extend(["-T", "-x", "-a"].map(OsString::from));
    let mut option = |text: String| args.extend([OsString::from("-o"), text.into()]);
    // ssh takes the first value that it is given, so what must hold comes before what the operator may change.
    option("BatchMode=yes".into());
    option(format!("StrictHostKeyChecking={}", if inventory.accept_new { "accept-new" } else { "yes" }));
    if let Some(file) = &inventory.known_hosts {
        option(format!("UserKnownHostsFile={}", file.display()));
    }
    option("ControlMaster=no".into());
    option("ControlPath=none".into());
    option("RequestTTY=no".into());
    option("ClearAllForwardings=yes".into());
    for own in host.ssh_options.iter().flatten() {
        option(own.clone());
    }
    option("ConnectTimeout=10".into());
    option("ServerAliveInterval=5".into());
    option("ServerAliveCountMax=3".into());
    option("LogLevel=ERROR".into());
    if let Some(file) = &host.identity_file {
        option("IdentitiesOnly=yes".into());
        args.extend(["-i".into(), file.into()]);
    }
    if let Some(jump) = &host.jump {
        args.extend(["-J".into(), jump.into()]);
    }
    if host.port > 0 {
        args.extend(["-p".into(), host.port.to_string().into()]);
    }
    if let Some(user) = &host.user {
        args.extend(["-l".into(), user.into()]);
    }
    args.push("--".into());
    args.push(host.address.as_deref().unwrap_or(name).into());
    args.push(command.into());
    args
}

/// What ssh's last words mean, for people: ssh itself has nothing but text to say it with, and nothing is decided by
/// it.
pub(crate) fn meaning(words: &str) -> Option<&'static str> {
    let known = [
        (
            "REMOTE HOST IDENTIFICATION HAS CHANGED",
            "the host's key has changed: either the host was made anew or somebody stands between; check, then \
                correct known_hosts",
        ),
        (
            "Host key verification failed",
            "the host's key is not the one in known_hosts; check, then add or correct it there",
        ),
        ("host key is known for", "the host's key is not in known_hosts; check it and add it there"),
        ("Permission denied", "the credentials were refused; check user, identity_file or the agent"),
        ("Could not resolve", "the address has no entry in the name service"),
        ("Connection refused", "no ssh server answers at this port"),
        ("Connection timed out", "the host does not answer"),
        ("timed out", "the host does not answer"),
        ("No route to host", "there is no way to the host"),
        ("Network is unreachable", "there is no way to the host"),
        ("No space left", "a disk of the host is full"),
    ];
    known.iter().find(|(text, _)| words.contains(text)).map(|(_, meaning)| *meaning)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn inventory(host: HostConfig) -> Inventory {
        Inventory {
            pool: "p".into(),
            ssh: "ssh".into(),
            ssh_config: None,
            known_hosts: Some("/k".into()),
            accept_new: false,
            keepalive: std::time::Duration::from_secs(10),
            hosts: BTreeMap::from([("a".to_owned(), host)]),
        }
    }

    #[test]
    fn what_must_hold_comes_before_what_the_operator_sets() {
        let host = HostConfig {
            address: Some("10.0.0.1".into()),
            port: 2222,
            user: Some("ops".into()),
            jump: Some("j@gate:22".into()),
            ssh_options: Some(vec!["ServerAliveInterval=1".into()]),
            ..HostConfig::default()
        };
        let args: Vec<String> = arguments(&inventory(host.clone()), "a", &host, "true")
            .into_iter()
            .map(|a| a.into_string().unwrap())
            .collect();
        let at = |text: &str| args.iter().position(|a| a == text).unwrap_or_else(|| panic!("{text} in {args:?}"));
        assert!(at("StrictHostKeyChecking=yes") < at("ServerAliveInterval=1"));
        assert!(at("ServerAliveInterval=1") < at("ServerAliveInterval=5"));
        assert_eq!(&args[args.len() - 3..], ["--", "10.0.0.1", "true"]);
        for (name, value) in [("-p", "2222"), ("-l", "ops"), ("-J", "j@gate:22")] {
            assert_eq!(args[at(name) + 1], value);
        }
    }

    #[test]
    fn any_login_shell_takes_the_command_as_one_word() {
        for forbidden in ['\'', '"', '\\', '!', '\n', '`'] {
            assert!(!BOOTSTRAP.contains(forbidden), "{forbidden:?}");
        }
        let command = remote_command(".drover", "n0", Binary { name: "x", size: 3, sha256: "ab" });
        assert!(command.ends_with("' drover n0 .drover x 3 ab"));
    }

    #[test]
    fn last_words_have_a_meaning() {
        assert!(meaning("user@h: Permission denied (publickey).").unwrap().contains("credentials"));
        assert!(
            meaning("WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! Host key verification failed.")
                .unwrap()
                .contains("has changed")
        );
        assert_eq!(meaning("something else"), None);
    }
}
