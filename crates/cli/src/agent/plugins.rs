//! What of the operator's `plugin` blocks can be judged before a plugin runs: options of the drivers that ship in this
//! program, and names that stand for no driver here.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use driver_sdk::{DevicePlugin as _, Driver as _, RemoteDriver as _, schema::Spec};
use hcl_lang::nearest;
use serde_json::{Value, json};

use super::config::Plugin;
use crate::commands::driver::{BUILT_IN, DEVICES};

/// Drivers of a stock agent that do not ship in this program.
const NOT_HERE: &[&str] = &["java", "qemu"];

/// What became of the blocks.
#[derive(Debug, Default)]
pub(crate) struct Judged {
    /// Options that a driver does not take, each with its place.
    pub(crate) mistakes: Vec<String>,
    /// Blocks that have no effect as things stand: the name, and why.
    pub(crate) idle: Vec<(String, String)>,
    /// Those among them that no plugin can be meant by.
    pub(crate) absent: BTreeSet<String>,
}

/// Judges the blocks. Options of external plugins are theirs to check, once they run.
pub(crate) fn judge(blocks: &BTreeMap<String, Plugin>, dir: Option<&Path>) -> Judged {
    let mut judged = Judged::default();
    for (name, block) in blocks {
        if let Some(schema) = schema(name) {
            let config = block.config.clone().unwrap_or_else(|| json!({}));
            judged.mistakes.extend(refused(name, &schema, &config));
        } else if !dir.is_some_and(|dir| dir.join(name).exists()) {
            if NOT_HERE.contains(&name.as_str()) {
                let why =
                    format!("this release has no driver {name}; a plugin of that name in plugin_dir would be used");
                judged.idle.push((name.clone(), why));
                judged.absent.insert(name.clone());
            } else if let Some(near) = nearest(name, BUILT_IN.iter().chain(DEVICES).copied()) {
                let why = format!(
                    "there is no file {name} in plugin_dir, and no such driver in this program; did you mean {near:?}?"
                );
                judged.idle.push((name.clone(), why));
            }
        }
    }
    judged
}

/// What of a configuration the driver does not take.
fn refused(name: &str, schema: &Spec, config: &Value) -> Vec<String> {
    match driver_host::config_findings(schema.wire(), config) {
        Ok(findings) => findings.iter().map(|finding| format!("plugin.{name}.{finding}")).collect(),
        Err(broken) => vec![format!("plugin.{name}: {broken}")],
    }
}

/// The options of a driver that ships in this program.
fn schema(name: &str) -> Option<Spec> {
    match name {
        "docker" => docker::Driver::new().config_schema(),
        "docker_remote" => docker::RemoteDriver::new().config_schema(),
        "exec" => exec::Driver::new().config_schema(),
        "mock" => mock::Mock::default().config_schema(),
        "mock_device" => mock::MockDevice::default().config_schema(),
        "mock_remote" => mock::MockRemote::default().config_schema(),
        "raw_exec" => raw_exec::Driver::new().config_schema(),
        "remote_exec" => remote_exec::Driver::new().config_schema(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{BUILT_IN, judge, schema};
    use crate::agent::{
        AgentArgs,
        config::typed,
        settings::{Settings, settings},
    };

    /// Every option of the drivers of the stock 1.9 and 2.0, with a value that is not the default.
    const STOCK: &[(&str, &str, &str)] = &[
        ("raw_exec", "enabled", "true"),
        ("raw_exec", "denied_host_uids", "\"0,1000-1999\""),
        ("raw_exec", "denied_host_gids", "\"0\""),
        ("raw_exec", "denied_envvars", "[\"AWS_*\"]"),
        ("exec", "no_pivot_root", "true"),
        ("exec", "default_pid_mode", "\"host\""),
        ("exec", "default_ipc_mode", "\"host\""),
        ("exec", "allow_caps", "[\"kill\"]"),
        ("exec", "denied_host_uids", "\"0\""),
        ("exec", "denied_host_gids", "\"0\""),
        ("mock", "fs_isolation", "\"image\""),
        ("mock", "shutdown_periodic_after", "\"1h\""),
        ("mock", "shutdown_periodic_duration", "\"1h\""),
        ("docker", "endpoint", "\"tcp://127.0.0.1:2375\""),
        ("docker", "auth", "{\"config\": \"/c\", \"helper\": \"h\"}"),
        ("docker", "tls", "{\"cert\": \"/c\", \"key\": \"/k\", \"ca\": \"/a\"}"),
        ("docker", "extra_labels", "[\"job_*\"]"),
        ("docker", "logging", "{\"type\": \"journald\", \"config\": {\"tag\": \"t\"}}"),
        (
            "docker",
            "gc",
            "{\"image\": false, \"image_delay\": \"1h\", \"container\": false, \"dangling_containers\": {\"enabled\": \
                false, \"dry_run\": true, \
             \"period\": \"9m\", \"creation_grace\": \"9m\"}}",
        ),
        ("docker", "volumes", "{\"enabled\": true, \"selinuxlabel\": \"z\"}"),
        ("docker", "allow_privileged", "true"),
        (
            "docker",
            "allowed_modes",
            "{\"pid\": [\"host\"], \"ipc\": [\"host\"], \"userns\": [\"host\"], \"uts\": [\"host\"]}",
        ),
        ("docker", "allow_caps", "[\"all\"]"),
        ("docker", "nvidia_runtime", "\"n\""),
        ("docker", "allow_runtimes", "[\"runc\"]"),
        ("docker", "infra_image", "\"i\""),
        ("docker", "infra_image_pull_timeout", "\"1m\""),
        ("docker", "image_pull_timeout", "\"1m\""),
        ("docker", "container_exists_attempts", "2"),
        ("docker", "oom_score_adj", "100"),
        ("docker", "pull_activity_timeout", "\"3m\""),
        ("docker", "pids_limit", "100"),
        ("docker", "disable_log_collection", "true"),
        // Taken here, and refused by the driver where it is true: there are no Windows containers.
        ("docker", "windows_allow_insecure_container_admin", "false"),
    ];

    fn node(plugin: &str, config: &Value) -> Result<Settings, String> {
        let tree = json!({"data_dir": "/x", "client": {"enabled": true, "servers": ["a"]},
            "plugin": {(plugin): {"config": config}}});
        let file = typed(tree).map_err(|e| format!("{e:?}"))?;
        let mistakes =
            |all: Vec<crate::agent::config::Mistake>| all.into_iter().map(|m| m.0).collect::<Vec<_>>().join("\n");
        settings(file, &AgentArgs::default(), None).map_err(mistakes)
    }

    #[test]
    fn every_option_of_stock_drivers_is_taken() {
        for (driver, option, value) in STOCK {
            let value: Value = serde_json::from_str(value).expect("JSON");
            let settings =
                node(driver, &json!({(*option): value})).unwrap_or_else(|why| panic!("{driver}.{option}: {why}"));
            assert!(settings.notes.lines().is_empty(), "{driver}.{option}: {:?}", settings.notes);
            let given = &settings.client.expect("a node").plugins[*driver];
            assert_eq!(
                given.config.as_ref().map(|c| &c[*option]),
                Some(&value),
                "{driver}.{option} reaches the driver"
            );
        }
    }

    #[test]
    fn what_a_driver_does_not_take_is_a_mistake_with_the_nearest_name() {
        for (driver, config, parts) in [
            ("raw_exec", json!({"enabeld": true}), ["plugin.raw_exec.config.enabeld", "did you mean \"enabled\"?"]),
            ("exec", json!({"allow_cap": ["kill"]}), ["plugin.exec.config.allow_cap", "did you mean \"allow_caps\"?"]),
            (
                "docker",
                json!({"gc": {"imagedelay": "1m"}}),
                ["plugin.docker.config.gc", "did you mean \"image_delay\"?"],
            ),
            ("docker", json!({"pids_limit": "many"}), ["plugin.docker.config.pids_limit", "number"]),
            ("docker", json!({"volumes": {"enabled": "perhaps"}}), ["plugin.docker.config.volumes", "bool"]),
            ("docker_remote", json!({"gc": {}}), ["plugin.docker_remote.config.gc", "not expected here"]),
            (
                "remote_exec",
                json!({"transprot": "ssh"}),
                ["plugin.remote_exec.config.transprot", "did you mean \"transport\"?"],
            ),
            (
                "mock",
                json!({"fs_isolatoin": "none"}),
                ["plugin.mock.config.fs_isolatoin", "did you mean \"fs_isolation\"?"],
            ),
            ("mock_remote", json!({"dri": "/d"}), ["plugin.mock_remote.config.dri", "did you mean \"dir\"?"]),
        ] {
            let why = node(driver, &config).expect_err(driver);
            assert!(parts.iter().all(|part| why.contains(part)), "{driver} {config}: {why}");
        }
        assert!(BUILT_IN.iter().all(|name| schema(name).is_some()), "every one of ours has options");
    }

    #[test]
    fn a_block_for_no_driver_is_told_of() {
        for name in ["java", "qemu"] {
            let settings = node(name, &json!({"image_paths": ["/x"]})).expect("taken");
            assert!(
                settings.notes.lines()[0]
                    .contains(&format!("plugin.{name} has no meaning here: this release has no driver"))
            );
            assert!(!settings.client.expect("a node").plugins.contains_key(name));
        }
        let settings = node("raw_exce", &json!({})).expect("taken: its file may come");
        assert!(settings.notes.lines()[0].contains("did you mean \"raw_exec\"?"), "{:?}", settings.notes);
        assert!(settings.client.expect("a node").plugins.contains_key("raw_exce"));
        assert!(node("podman", &json!({"x": 1})).expect("an external one").notes.lines().is_empty());
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("java"), "").expect("a file");
        let blocks = [("java".to_owned(), Default::default())].into();
        assert!(judge(&blocks, Some(dir.path())).idle.is_empty());
    }
}
