//! Providers of tasks' secrets: the two that every node has, and executables.

use model::secret_rules::{NOMAD, VAULT, attribute};
use node_config::ClientConfig;

use super::{
    executables::{self, Kind},
    facts::Facts,
};

/// Version of the providers in this program: that of Nomad's.
const BUILT_IN: &str = "1.0.0";

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    let env = [("CPI_OPERATION", "fingerprint".as_ref())];
    let built_in = (&[NOMAD, VAULT][..], BUILT_IN);
    let kind = Kind { what: "provider of secrets", built_in, attribute, env: &env, version };
    executables::look(&config.secrets_dir(), &kind, facts);
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
