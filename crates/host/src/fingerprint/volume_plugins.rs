//! Plugins of dynamic host volumes: the one that every node has, and executables.

use model::volume::{MKDIR, attribute};
use node_config::ClientConfig;
use serde::Deserialize;

use super::{
    executables::{self, Kind},
    facts::Facts,
};

/// Version of the plugin in this program: that of Nomad's.
const BUILT_IN: &str = "0.0.1";

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    let dir = &config.host_volume_plugin_dir;
    let env = [("DHV_OPERATION", "fingerprint".as_ref()), ("DHV_PLUGIN_DIR", dir.as_os_str())];
    let kind = Kind { what: "plugin of host volumes", built_in: (&[MKDIR], BUILT_IN), attribute, env: &env, version };
    executables::look(dir, &kind, facts);
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
