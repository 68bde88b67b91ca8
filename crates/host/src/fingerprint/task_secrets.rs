//! Providers of tasks' secrets: the two that every node has, and executables.

use std::process::Command;

use model::secret_rules::{NOMAD, VAULT, attribute};
use node_config::ClientConfig;

use super::{
    facts::Facts,
    said::{On, said},
};

/// Version of the providers in this program: that of Nomad's.
const BUILT_IN: &str = "1.0.0";

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    for provider in [NOMAD, VAULT] {
        facts.set(attribute(provider), BUILT_IN);
    }
    for entry in std::fs::read_dir(config.secrets_dir()).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let file = entry.path();
        let mut command = Command::new(&file);
        command.arg("fingerprint").env_clear().env("CPI_OPERATION", "fingerprint");
        match said(&mut command, &On::Stdout).and_then(|said| version(&said)) {
            Ok(_) if [NOMAD, VAULT].contains(&name.as_str()) => {
                tracing::warn!(file = %file.display(), "not used: every node has a provider of that name");
            }
            Ok(version) => facts.set(attribute(&name), version),
            Err(why) => tracing::warn!(file = %file.display(), why, "no provider of secrets"),
        }
    }
}

/// The version in an answer to `fingerprint`.
fn version(said: &str) -> Result<String, String> {
    let said: serde_json::Value = serde_json::from_str(said).map_err(|e| format!("its answer is no JSON: {e}"))?;
    if said["type"] != "secrets" {
        return Err(format!("its answer has type {}, not \"secrets\"", said["type"]));
    }
    let version = said["version"].as_str().filter(|version| !version.is_empty());
    version.map(str::to_owned).ok_or_else(|| "its answer has no version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_executables() {
        assert_eq!(version(r#"{"type": "secrets", "version": "0.0.1"}"#), Ok("0.0.1".to_owned()));
        for (said, part) in
            [("usage: x", "no JSON"), (r#"{"version": "1"}"#, "type null"), (r#"{"type": "secrets"}"#, "no version")]
        {
            assert!(version(said).expect_err("refused").contains(part), "{said}");
        }
    }
}
