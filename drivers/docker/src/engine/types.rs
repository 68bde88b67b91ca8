//! The parts of the engine's answers that matter here. Everything else may be absent, null or new.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde::{Deserialize, Deserializer};

/// Null counts as absent.
fn lax<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// `GET /version`.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(crate) struct Version {
    #[serde(rename = "Version")]
    pub(crate) version: String,
    #[serde(rename = "ApiVersion")]
    pub(crate) api_version: String,
    #[serde(rename = "MinAPIVersion")]
    pub(crate) min_api_version: String,
    #[serde(rename = "Os")]
    pub(crate) os: String,
}

/// `GET /info`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Info {
    #[serde(rename = "ID", deserialize_with = "lax")]
    pub(crate) id: String,
    #[serde(rename = "OSType", deserialize_with = "lax")]
    pub(crate) os_type: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) driver: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) cgroup_version: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) runtimes: BTreeMap<String, serde_json::Value>,
    #[serde(deserialize_with = "lax")]
    pub(crate) live_restore_enabled: bool,
    /// The engine's clock.
    #[serde(deserialize_with = "lax")]
    pub(crate) system_time: String,
    /// What the machine cannot do, in the engine's words.
    #[serde(deserialize_with = "lax")]
    pub(crate) warnings: Vec<String>,
}

/// `GET /containers/{}/json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Container {
    #[serde(deserialize_with = "lax")]
    pub(crate) id: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) created: String,
    /// Id of the image.
    #[serde(deserialize_with = "lax")]
    pub(crate) image: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) state: State,
    #[serde(deserialize_with = "lax")]
    pub(crate) config: ContainerConfig,
    #[serde(deserialize_with = "lax")]
    pub(crate) host_config: HostConfig,
    #[serde(deserialize_with = "lax")]
    pub(crate) network_settings: NetworkSettings,
}

/// State of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct State {
    #[serde(deserialize_with = "lax")]
    pub(crate) status: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) running: bool,
    #[serde(rename = "OOMKilled", deserialize_with = "lax")]
    pub(crate) oom_killed: bool,
    #[serde(deserialize_with = "lax")]
    pub(crate) pid: i64,
    #[serde(deserialize_with = "lax")]
    pub(crate) exit_code: i64,
    #[serde(deserialize_with = "lax")]
    pub(crate) error: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) started_at: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) finished_at: String,
}

/// What a container was made from.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct ContainerConfig {
    #[serde(deserialize_with = "lax")]
    pub(crate) labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "lax")]
    pub(crate) tty: bool,
    #[serde(deserialize_with = "lax")]
    pub(crate) stop_signal: String,
}

/// How it is tied to its machine.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct HostConfig {
    #[serde(deserialize_with = "lax")]
    pub(crate) network_mode: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) restart_policy: RestartPolicy,
}

/// When the engine starts a container by itself.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct RestartPolicy {
    /// `no`, `always`…
    #[serde(deserialize_with = "lax")]
    pub(crate) name: String,
}

/// Where it is reached.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct NetworkSettings {
    #[serde(deserialize_with = "lax")]
    pub(crate) sandbox_key: String,
    /// `80/tcp` → addresses on the engine's machine.
    #[serde(deserialize_with = "lax")]
    pub(crate) ports: BTreeMap<String, Option<Vec<Binding>>>,
    #[serde(deserialize_with = "lax")]
    pub(crate) networks: BTreeMap<String, Network>,
}

/// A published port.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Binding {
    #[serde(deserialize_with = "lax")]
    pub(crate) host_port: String,
}

/// One network of a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Network {
    #[serde(rename = "IPAddress", deserialize_with = "lax")]
    pub(crate) ip: String,
    #[serde(rename = "GlobalIPv6Address", deserialize_with = "lax")]
    pub(crate) ipv6: String,
}

/// An entry of `GET /containers/json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Listed {
    #[serde(deserialize_with = "lax")]
    pub(crate) id: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) labels: BTreeMap<String, String>,
    /// `created`, `running`, `exited`…
    #[serde(deserialize_with = "lax")]
    pub(crate) state: String,
    /// Seconds since the epoch.
    #[serde(deserialize_with = "lax")]
    pub(crate) created: i64,
}

/// `GET /images/{}/json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Image {
    #[serde(deserialize_with = "lax")]
    pub(crate) id: String,
}

/// Answers that carry an id.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Created {
    #[serde(deserialize_with = "lax")]
    pub(crate) id: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) warnings: Vec<String>,
}

/// `GET /exec/{}/json`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct ExecState {
    #[serde(deserialize_with = "lax")]
    pub(crate) running: bool,
    pub(crate) exit_code: Option<i64>,
    #[serde(deserialize_with = "lax")]
    pub(crate) pid: i64,
}

/// `GET /volumes`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Volumes {
    #[serde(deserialize_with = "lax")]
    pub(crate) volumes: Vec<Volume>,
}

/// A volume.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(crate) struct Volume {
    #[serde(deserialize_with = "lax")]
    pub(crate) name: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) created_at: String,
    #[serde(deserialize_with = "lax")]
    pub(crate) labels: BTreeMap<String, String>,
}

/// A time of the engine's; its zero is the year 1.
pub(crate) fn time(text: &str) -> Option<SystemTime> {
    let at: jiff::Timestamp = text.parse().ok()?;
    (at.as_second() > 0).then(|| SystemTime::from(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nulls_and_strangers_do_not_hide_the_state() {
        let text = r#"{"Id":"x","State":{"Status":"exited","ExitCode":3,"OOMKilled":null,"Health":{"New":[1]}},"Config":{"Labels":null,"Tty":true},
            "HostConfig":{"NetworkMode":null,"CgroupnsMode":"a new one"},"NetworkSettings":{"Ports":{"80/tcp":null,"81/tcp":[{"HostPort":"9"}]},"Networks":null}}"#;
        let seen: Container = serde_json::from_str(text).expect("an answer");
        assert_eq!((seen.state.exit_code, seen.config.tty, seen.network_settings.ports.len()), (3, true, 2));
        assert!(serde_json::from_str::<Container>("null").is_err());
    }

    #[test]
    fn the_year_one_is_no_time() {
        assert_eq!(time("0001-01-01T00:00:00Z"), None);
        assert_eq!(time("soon"), None);
        assert!(time("2026-11-20T09:32:41.479808463Z").is_some());
    }
}
