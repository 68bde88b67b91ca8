//! What a job may say of a task's workload identities.

use std::collections::BTreeSet;

use crate::{
    canonical::DEFAULT_IDENTITY,
    go_duration::GoDuration,
    task::{Identity, Task},
};

/// What follows the renewal of a token.
pub mod change_mode {
    /// Nothing: the task reads its file again.
    pub const NOOP: &str = "noop";
    /// The task is restarted.
    pub const RESTART: &str = "restart";
    /// The task gets a signal.
    pub const SIGNAL: &str = "signal";
}

/// Tokens are renewed at half their life; shorter lives would keep the servers busy with them.
const SHORTEST: GoDuration = GoDuration::from_secs(1);

/// The identities of a task, the default one first.
pub fn identities(task: &Task) -> impl Iterator<Item = &Identity> {
    task.identity.iter().chain(&task.identities)
}

/// Mistakes, each in words.
pub(crate) fn mistakes(task: &Task) -> Vec<String> {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for identity in identities(task) {
        let name = &identity.name;
        let mut wrong = |what: &str| found.push(format!("Identity {name:?}: {what}"));
        if name.is_empty()
            || name.len() > 128
            || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        {
            wrong("its name must be 1 to 128 letters, digits, - and _");
        }
        if !names.insert(name) {
            wrong(if name == DEFAULT_IDENTITY {
                "only one identity block may be without a name or named \"default\""
            } else {
                "there are two of this name"
            });
        }
        match identity.change_mode.as_str() {
            "" | change_mode::NOOP | change_mode::RESTART | change_mode::SIGNAL => {}
            other => wrong(&format!("change_mode {other:?} is none of noop, restart and signal")),
        }
        match (identity.change_mode == change_mode::SIGNAL, identity.change_signal.is_empty()) {
            (true, true) => wrong("change_mode \"signal\" needs a change_signal"),
            (false, false) => wrong("change_signal needs change_mode = \"signal\""),
            _ => {}
        }
        if identity.ttl.nanos() < 0 || (identity.ttl != GoDuration::ZERO && identity.ttl < SHORTEST) {
            wrong("ttl must be at least 1s; without one the token does not end");
        }
        if !identity.filepath.is_empty() && !identity.file {
            wrong("filepath needs file = true");
        }
        if !identity.service_name.is_empty() {
            wrong("service_name is for services of Consul, with which there is no integration");
        }
    }
    found
}

/// What is accepted and may surprise.
pub(crate) fn warnings(task: &Task) -> Vec<String> {
    let mut found = Vec::new();
    for identity in identities(task).filter(|i| i.env || i.file) {
        let name = &identity.name;
        if identity.audience.is_empty() {
            found.push(format!(
                "Identity {name:?} has no aud: whoever verifies its tokens cannot tell for whom they are meant"
            ));
        }
        if name != DEFAULT_IDENTITY && identity.ttl == GoDuration::ZERO {
            found.push(format!(
                "Identity {name:?} has no ttl: its tokens never expire, and libraries of OpenID Connect refuse \
                    such tokens"
            ));
        }
        if identity.env && identity.ttl != GoDuration::ZERO && identity.change_mode != change_mode::RESTART {
            found.push(format!(
                "Identity {name:?} with env = true and a ttl: the variable keeps its first token, which ends; use \
                    change_mode = \"restart\" or file"
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_are_told_each() {
        let good = Identity {
            name: "vault-1".into(),
            audience: vec!["a".into()],
            file: true,
            ttl: GoDuration::from_secs(60),
            ..Identity::default()
        };
        let of = |identity: Identity| mistakes(&Task { identities: vec![identity], ..Task::default() });
        assert_eq!(of(good.clone()), Vec::<String>::new());
        for (one, part) in [
            (Identity { name: "a b".into(), ..good.clone() }, "letters, digits"),
            (Identity { name: String::new(), ..good.clone() }, "letters, digits"),
            (Identity { name: "x".repeat(129), ..good.clone() }, "letters, digits"),
            (Identity { change_mode: "script".into(), ..good.clone() }, "none of noop"),
            (Identity { change_mode: "signal".into(), ..good.clone() }, "needs a change_signal"),
            (Identity { change_signal: "SIGHUP".into(), ..good.clone() }, "needs change_mode"),
            (Identity { ttl: GoDuration::from_millis(10), ..good.clone() }, "at least 1s"),
            (Identity { ttl: GoDuration(-1), ..good.clone() }, "at least 1s"),
            (Identity { file: false, filepath: "local/x".into(), ..good.clone() }, "filepath needs file"),
            (Identity { service_name: "web".into(), ..good.clone() }, "no integration"),
        ] {
            let found = of(one);
            assert!(found.len() == 1 && found[0].contains(part), "{part}: {found:?}");
        }
        let twice = Task { identities: vec![good.clone(), good.clone()], ..Task::default() };
        assert!(mistakes(&twice)[0].contains("two of this name"));
        let endless = Identity { ttl: GoDuration::ZERO, ..good.clone() };
        assert!(warnings(&Task { identities: vec![endless], ..Task::default() })[0].contains("never expire"));
        assert_eq!(warnings(&Task { identities: vec![good.clone()], ..Task::default() }), Vec::<String>::new());
        let loose = Identity { audience: Vec::new(), env: true, ..good };
        assert_eq!(warnings(&Task { identities: vec![loose], ..Task::default() }).len(), 2);
    }
}
