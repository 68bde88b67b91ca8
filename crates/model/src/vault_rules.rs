//! What a job may say of the token of Vault that a task gets.

use crate::{
    identity_rules::{change_mode, identities},
    task::{Identity, Task},
};

/// The one cluster of Vault that agents know.
pub const CLUSTER: &str = "default";

/// Name of the identity that a task logs in to Vault with (`vault_` and the name of the cluster).
pub const IDENTITY: &str = "vault_default";

/// The identity that the task logs in to Vault with; `None`: it has none.
#[must_use]
pub fn identity(task: &Task) -> Option<&Identity> {
    identities(task).find(|i| i.name == IDENTITY)
}

/// Mistakes in the task's `vault` block, each in words.
pub(crate) fn mistakes(task: &Task) -> Vec<String> {
    let Some(vault) = &task.vault else { return Vec::new() };
    let mut found = Vec::new();
    let (mode, signal) = (vault.change_mode.as_deref().unwrap_or_default(), vault.change_signal.as_deref());
    match mode {
        "" | change_mode::NOOP | change_mode::RESTART => {}
        change_mode::SIGNAL if signal.unwrap_or_default().is_empty() => {
            found.push("vault: change_mode \"signal\" needs a change_signal".to_owned());
        }
        change_mode::SIGNAL => {}
        other => found.push(format!("vault: change_mode {other:?} is none of noop, restart and signal")),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Vault;

    #[test]
    fn modes_are_known_and_signals_named() {
        let said = |mode: &str, signal: &str| {
            let vault =
                Vault { change_mode: Some(mode.into()), change_signal: Some(signal.into()), ..Vault::default() };
            mistakes(&Task { vault: Some(vault), ..Task::default() })
        };
        assert!(said("noop", "").is_empty() && said("restart", "").is_empty() && said("signal", "SIGHUP").is_empty());
        assert_eq!(said("signal", ""), ["vault: change_mode \"signal\" needs a change_signal"]);
        assert_eq!(said("reload", ""), ["vault: change_mode \"reload\" is none of noop, restart and signal"]);
    }
}
