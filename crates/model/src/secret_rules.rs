//! What a `secret` block of a task must hold.

use std::collections::BTreeSet;

use crate::task::{Task, TaskSecret};

/// The provider that reads variables of the cluster.
pub const NOMAD: &str = "nomad";

/// The provider that reads Vault with the task's token.
pub const VAULT: &str = "vault";

/// Longest name of a secret, in characters.
const NAME_MAX: usize = 128;

/// How Vault keeps what the path leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// `kv`, the default: the values are what Vault answers.
    Plain,
    /// `kv_v2`: each version wraps its values.
    Versioned,
}

/// The engine of a secret of Vault; `None` = there is no engine of that name.
#[must_use]
pub fn engine(secret: &TaskSecret) -> Option<Engine> {
    match secret.config.get("engine").map(|engine| engine.as_str().unwrap_or_default()) {
        None | Some("kv" | "kv_v1") => Some(Engine::Plain),
        Some("kv_v2") => Some(Engine::Versioned),
        Some(_) => None,
    }
}

/// The attribute that a node has when it can ask the provider.
#[must_use]
pub fn attribute(provider: &str) -> String {
    format!("plugins.secrets.{provider}.version")
}

/// Whether a variable steers a dynamic linker, a shell, an interpreter, or by its configuration a program that others
/// call: by it, whoever submits a job would run programs as the agent's user. A name that is none may hold the `=`
/// after another one.
#[must_use]
pub fn steers(name: &str) -> bool {
    const NAMES: &[&str] = &["PATH", "HOME", "IFS", "ENV", "SHELLOPTS", "PS4", "ZDOTDIR", "KUBECONFIG", "GODEBUG"];
    const BEGINNINGS: &[&str] =
        &["LD_", "BASH", "PYTHON", "PERL", "RUBY", "GEM_", "GIT_", "LUA_", "NODE_", "OPENSSL_", "XDG_", "GLIBC_"];
    const ENDINGS: &[&str] = &[
        "_CONFIG",
        "_CONFIG_DIR",
        "_CONFIG_FILE",
        "_CONFIG_PATH",
        "_HOME",
        "_OPTIONS",
        "_OPTS",
        "_PATH",
        "_PLUGINS",
        "_CREDENTIALS_FILE",
    ];
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    let word = name.starts_with(begins) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    !word
        || NAMES.contains(&name)
        || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
        || ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Everything that is wrong with the task's `secret` blocks, each in words.
pub(crate) fn mistakes(task: &Task) -> Vec<String> {
    let mut names = BTreeSet::new();
    let mut found = Vec::new();
    for secret in &task.secrets {
        let mut wrong = |why: &str| found.push(format!("secret {:?}: {why}", secret.name));
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if secret.name.is_empty() || secret.name.len() > NAME_MAX || !secret.name.chars().all(word) {
            wrong("its name is 1 to 128 letters, digits and underscores");
        }
        if !names.insert(&secret.name) {
            wrong("the task has another secret of that name");
        }
        if secret.path.is_empty() {
            wrong("it has no path");
        }
        let known = match secret.provider.as_str() {
            "" => {
                wrong("it has no provider: name nomad, vault, or an executable in common_plugin_dir of the nodes");
                continue;
            }
            NOMAD => "namespace",
            VAULT => "engine",
            other => {
                // It becomes a file name and the name of an attribute.
                if !other.chars().all(|c| word(c) || c == '-') {
                    wrong("the name of its provider is letters, digits, underscores and hyphens");
                }
                for name in secret.env.keys().filter(|name| steers(name)) {
                    wrong(&format!("env may not set {name}: the executable runs with the rights of the agent"));
                }
                if !secret.config.is_empty() {
                    wrong("config is for the providers nomad and vault; write env");
                }
                continue;
            }
        };
        if !secret.env.is_empty() {
            wrong("env is for executables; the providers nomad and vault take config");
        }
        for name in secret.config.keys().filter(|name| *name != known) {
            wrong(&format!("config has no option {name:?} with provider {}; there is {known}", secret.provider));
        }
        if secret.config.get(known).is_some_and(|value| !value.is_string()) {
            wrong(&format!("{known} is a text"));
        } else if secret.provider == VAULT && engine(secret).is_none() {
            wrong("engine is none of kv and kv_v2");
        }
        if secret.provider == VAULT && task.vault.is_none() {
            wrong("the task needs a vault block, whose token reads it");
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::task::Vault;

    fn said(blocks: serde_json::Value) -> Vec<String> {
        let secrets = serde_json::from_value(blocks).expect("secrets");
        mistakes(&Task { secrets, ..Task::default() })
    }

    #[test]
    fn each_mistake_is_named() {
        let fine = json!([{"Name": "a", "Provider": "nomad", "Path": "p", "Config": {"namespace": "ops"}},
            {"Name": "b", "Provider": "pass-store", "Path": "p", "Env": {"A": "1"}}]);
        assert_eq!(said(fine), [""; 0]);
        for (block, part) in [
            (json!({"Name": "a-b", "Provider": "nomad", "Path": "p"}), "letters, digits and underscores"),
            (json!({"Name": "a".repeat(129), "Provider": "nomad", "Path": "p"}), "1 to 128"),
            (json!({"Name": "a", "Path": "p"}), "no provider"),
            (json!({"Name": "a", "Provider": "nomad"}), "no path"),
            (json!({"Name": "a", "Provider": "../x", "Path": "p"}), "the name of its provider"),
            (json!({"Name": "a", "Provider": "x", "Path": "p", "Config": {"a": 1}}), "write env"),
            (json!({"Name": "a", "Provider": "x", "Path": "p", "Env": {"LD_PRELOAD": "/x.so"}}), "not set LD_PRELOAD"),
            (json!({"Name": "a", "Provider": "x", "Path": "p", "Env": {"PATH": "/tmp"}}), "may not set PATH"),
            (json!({"Name": "a", "Provider": "x", "Path": "p", "Env": {"PATH=/tmp": ""}}), "may not set PATH=/tmp"),
            (json!({"Name": "a", "Provider": "x", "Path": "p", "Env": {"": ""}}), "may not set"),
            (
                json!({"Name": "a", "Provider": "x", "Path": "p", "Env": {"VAULT_CONFIG_PATH": "x"}}),
                "VAULT_CONFIG_PATH",
            ),
            (json!({"Name": "a", "Provider": "x", "Path": "p", "Env": {"JAVA_TOOL_OPTIONS": ""}}), "JAVA_TOOL_OPTIONS"),
            (json!({"Name": "a", "Provider": "nomad", "Path": "p", "Env": {"a": "1"}}), "env is for executables"),
            (json!({"Name": "a", "Provider": "nomad", "Path": "p", "Config": {"engine": "kv"}}), "there is namespace"),
            (json!({"Name": "a", "Provider": "nomad", "Path": "p", "Config": {"namespace": 1}}), "is a text"),
            (json!({"Name": "a", "Provider": "vault", "Path": "p"}), "needs a vault block"),
        ] {
            let said = said(json!([block]));
            assert!(said.len() == 1 && said[0].contains(part), "{part}: {said:?}");
        }
        let twice = json!({"Name": "a", "Provider": "nomad", "Path": "p"});
        assert_eq!(said(json!([twice, twice])), ["secret \"a\": the task has another secret of that name"]);
        let odd = json!([{"Name": "a", "Provider": "vault", "Path": "p", "Config": {"engine": "transit"}}]);
        let secrets = serde_json::from_value(odd).expect("secrets");
        let task = Task { secrets, vault: Some(Vault::default()), ..Task::default() };
        assert_eq!(mistakes(&task), ["secret \"a\": engine is none of kv and kv_v2"]);
    }
}
