//! Plugins of dynamic host volumes: the one that every node has, and executables.

use std::process::Command;

use model::volume::{MKDIR, attribute};
use node_config::ClientConfig;
use serde::Deserialize;

use super::{
    facts::Facts,
    said::{On, said},
};

/// Version of the plugin in this program: that of Nomad's.
const BUILT_IN: &str = "0.0.1";

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    facts.set(attribute(MKDIR), BUILT_IN);
    for entry in std::fs::read_dir(&config.host_volume_plugin_dir).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let file = entry.path();
        let mut command = Command::new(&file);
        command.arg("fingerprint").env_clear().env("DHV_OPERATION", "fingerprint");
        command.env("DHV_PLUGIN_DIR", &config.host_volume_plugin_dir);
        match said(&mut command, &On::Stdout).and_then(|said| version(&said)) {
            Ok(_) if name == MKDIR => {
                tracing::warn!(file = %file.display(), "not used: every node has a plugin of that name");
            }
            Ok(version) => facts.set(attribute(&name), version),
            Err(why) => tracing::warn!(file = %file.display(), why, "no plugin of host volumes"),
        }
    }
}

/// The version in an answer to `fingerprint`.
fn version(said: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Answer {
        version: String,
    }
    let Answer { version } =
        serde_json::from_str(said).map_err(|e| format!("its answer is not as it has to be: {e}"))?;
    if version.is_empty() { Err("its version is empty".to_owned()) } else { Ok(version) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_executables() {
        assert_eq!(version(r#"{"version": "0.0.1", "more": 1}"#), Ok("0.0.1".to_owned()));
        for said in ["usage: x", "{}", r#"{"version": ""}"#, r#"{"version": 1}"#] {
            assert!(version(said).is_err(), "{said}");
        }
    }
}
