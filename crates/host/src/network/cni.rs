//! CNI: lists of plugins, the requests to each, and their answers. The protocol is the public specification 0.4.0;
//! 1.0.0 has the same requests.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use model::{alloc::NetworkStatus, network::Dns};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::io::AsyncWriteExt;

/// How long one plugin may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interface inside the namespace.
pub const INTERFACE: &str = "eth0";
/// Where plugins find the programs that they call, if the agent's own environment has no `PATH`.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The capability by which a plugin's configuration says that it maps ports.
const PORT_MAPPINGS: &str = "portMappings";

/// Error of a CNI plugin.
#[derive(Debug, thiserror::Error)]
pub enum CniError {
    /// The plugin is not installed.
    #[error("there is no CNI plugin {plugin:?} in {dirs}; install it there or set client.cni_path")]
    Absent {
        /// Name of the plugin.
        plugin: String,
        /// The directories searched.
        dirs: String,
    },
    /// The plugin could not be run.
    #[error("run the CNI plugin {plugin}: {source}")]
    Run {
        /// File of the plugin.
        plugin: String,
        /// Why it could not be run.
        source: io::Error,
    },
    /// The node killed the plugin because it took too long.
    #[error("the CNI plugin {plugin} did not answer {command} within {} s and was killed", PATIENCE.as_secs())]
    Slow {
        /// File of the plugin.
        plugin: String,
        /// The `CNI_COMMAND` of the request.
        command: &'static str,
    },
    /// The plugin has refused the request.
    #[error("the CNI plugin {plugin} refuses {command}: {why}")]
    Refused {
        /// File of the plugin.
        plugin: String,
        /// The `CNI_COMMAND` of the request.
        command: &'static str,
        /// The plugin's reason.
        why: String,
    },
    /// The plugin's answer cannot be read.
    #[error("the CNI plugin {plugin} answers {command} with what is no result: {why}")]
    NoResult {
        /// File of the plugin.
        plugin: String,
        /// The `CNI_COMMAND` of the request.
        command: &'static str,
        /// What is wrong with the answer.
        why: String,
    },
}

/// A network as an operator or Drover configures it: plugins that are called one after the other.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkList {
    /// Version of the CNI protocol.
    pub cni_version: String,
    /// Name of the network.
    pub name: String,
    /// The plugins with their configuration, in order.
    pub plugins: Vec<Map<String, Value>>,
    /// The operator switches CHECK off.
    #[serde(skip_serializing_if = "is_false", deserialize_with = "truth")]
    pub disable_check: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_false(value: &bool) -> bool {
    !value
}

/// Accepts text as well: older versions of the specification had no boolean here.
fn truth<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let value = Value::deserialize(from)?;
    Ok(value.as_bool().unwrap_or_else(|| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case("true"))))
}

/// A port of the host that leads into the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PortMapping {
    /// Port of the host.
    pub host_port: u16,
    /// Port in the namespace.
    pub container_port: u16,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address of the host; empty = all.
    #[serde(rename = "hostIP")]
    pub host_ip: String,
}

impl NetworkList {
    /// Reads a list, or the configuration of a single plugin.
    ///
    /// # Errors
    /// When the text is no JSON of a list, has no name or no plugin, or a plugin has no type.
    pub fn parse(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let list = if value.get("plugins").is_some() {
            serde_json::from_value(value).map_err(|e| e.to_string())?
        } else {
            let own: Self = serde_json::from_value(value.clone()).map_err(|e| e.to_string())?;
            Self { plugins: value.as_object().cloned().into_iter().collect(), ..own }
        };
        if list.name.is_empty() {
            return Err("it has no name".into());
        }
        if list.plugins.is_empty() || list.plugins.iter().any(|p| kind(p).is_empty()) {
            return Err("each of its plugins, of which there must be one, needs a type".into());
        }
        Ok(list)
    }

    /// The request to plugin `at`: its own configuration, the network's name, and the result of the plugins before it.
    fn request(&self, at: usize, previous: Option<&Value>, ports: &[PortMapping]) -> Value {
        let mut request = self.plugins[at].clone();
        request.insert("name".into(), self.name.clone().into());
        request.insert("cniVersion".into(), self.cni_version.clone().into());
        let maps_ports = request.get("capabilities").and_then(|c| c.get(PORT_MAPPINGS)) == Some(&Value::Bool(true));
        if maps_ports && !ports.is_empty() {
            request.insert("runtimeConfig".into(), json!({ PORT_MAPPINGS: ports }));
        }
        if let Some(previous) = previous {
            request.insert("prevResult".into(), previous.clone());
        }
        request.into()
    }

    /// Whether the plugins know CHECK: since version 0.4.0 of the specification.
    pub fn can_check(&self) -> bool {
        let mut numbers = self.cni_version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        !self.disable_check && version >= (0, 4)
    }

    /// Types of its plugins.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().map(kind)
    }
}

fn kind(plugin: &Map<String, Value>) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The operator's networks by name, from the readable files of a directory; for the other files, why not.
pub fn networks(dir: &Path) -> (BTreeMap<String, NetworkList>, Vec<String>) {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| ["conflist", "conf", "json"].iter().any(|known| e == *known)));
    files.sort();
    let (mut found, mut wrong) = (BTreeMap::new(), Vec::new());
    for file in files {
        match std::fs::read_to_string(&file).map_err(|e| e.to_string()).and_then(|text| NetworkList::parse(&text)) {
            // The first file by name wins, as in every CNI runtime.
            Ok(list) => drop(found.entry(list.name.clone()).or_insert(list)),
            Err(why) => wrong.push(format!("{}: {why}", file.display())),
        }
    }
    (found, wrong)
}

/// The file of a plugin in the first directory that has it.
pub fn find(dirs: &[PathBuf], plugin: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    // A type is a name; it must not lead out of the directories.
    if plugin.is_empty() || plugin.contains('/') {
        return None;
    }
    let usable =
        |path: &PathBuf| std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    dirs.iter().map(|dir| dir.join(plugin)).find(usable)
}

/// One namespace's part in a network.
#[derive(Debug)]
pub struct Runner<'a> {
    /// Where plugins are.
    pub dirs: &'a [PathBuf],
    /// Id of the allocation.
    pub container: &'a str,
    /// File of the namespace; `None` when it is gone.
    pub netns: Option<&'a Path>,
    /// `CNI_ARGS`.
    pub args: &'a str,
    /// Port mappings.
    pub ports: &'a [PortMapping],
    /// Log of the plugins' standard error.
    pub log: &'a File,
}

impl Runner<'_> {
    /// Joins the namespace to the network and returns the last plugin's result.
    ///
    /// # Errors
    /// See [`CniError`]. Earlier plugins of the list have done their part: [`Runner::del`] takes it back.
    pub async fn add(&self, list: &NetworkList) -> Result<Value, CniError> {
        let mut result: Option<Value> = None;
        for at in 0..list.plugins.len() {
            let plugin = kind(&list.plugins[at]);
            let answer = self.call("ADD", plugin, &list.request(at, result.as_ref(), self.ports)).await?;
            let parsed = serde_json::from_slice(&answer);
            result = Some(parsed.map_err(|e| CniError::NoResult {
                plugin: plugin.into(),
                command: "ADD",
                why: e.to_string(),
            })?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Takes the namespace out of the network, the last plugin first. Calls all plugins and returns the first refusal.
    ///
    /// # Errors
    /// See [`CniError`]. Another call is allowed: plugins answer a second DEL with success.
    pub async fn del(&self, list: &NetworkList, result: Option<&Value>) -> Result<(), CniError> {
        let mut first = Ok(());
        for at in (0..list.plugins.len()).rev() {
            let done = self.call("DEL", kind(&list.plugins[at]), &list.request(at, result, self.ports)).await;
            first = first.and(done.map(drop));
        }
        first
    }

    /// Asks plugin `at` to CHECK its part of the network. `result` is the last plugin's.
    ///
    /// # Errors
    /// See [`CniError`]; the plugin's refusal is among them.
    pub async fn check(&self, list: &NetworkList, at: usize, result: Option<&Value>) -> Result<(), CniError> {
        self.call("CHECK", kind(&list.plugins[at]), &list.request(at, result, self.ports)).await.map(drop)
    }

    async fn call(&self, command: &'static str, plugin: &str, request: &Value) -> Result<Vec<u8>, CniError> {
        let file = find(self.dirs, plugin)
            .ok_or_else(|| CniError::Absent { plugin: plugin.into(), dirs: joined(self.dirs) })?;
        let failed = |source| CniError::Run { plugin: plugin.into(), source };
        let mut process = tokio::process::Command::new(file);
        process
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_else(|| SEARCH_PATH.into()))
            .env("CNI_COMMAND", command)
            .env("CNI_CONTAINERID", self.container)
            .env("CNI_NETNS", self.netns.map(Path::as_os_str).unwrap_or_default())
            .env("CNI_IFNAME", INTERFACE)
            .env("CNI_ARGS", self.args)
            .env("CNI_PATH", joined(self.dirs))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A plugin that outlives its agent keeps the lock on this file.
            .stderr(self.log.try_clone().map_err(failed)?)
            .kill_on_drop(true);
        let mut child = process.spawn().map_err(failed)?;
        let mut stdin = child.stdin.take();
        let asked = async {
            if let Some(stdin) = &mut stdin {
                // A plugin that does not read its configuration reports its own reason.
                let _ = stdin.write_all(request.to_string().as_bytes()).await;
            }
            drop(stdin.take());
            child.wait_with_output().await
        };
        let output = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(output) => output.map_err(failed)?,
            Err(_) => return Err(CniError::Slow { plugin: plugin.into(), command }),
        };
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(CniError::Refused {
            plugin: plugin.into(),
            command,
            why: refusal(&output.stdout, &output.status.to_string()),
        })
    }
}

fn joined(dirs: &[PathBuf]) -> String {
    dirs.iter().map(|d| d.display().to_string()).collect::<Vec<_>>().join(":")
}

/// The text of an error answer: `{code, msg, details}`.
fn refusal(stdout: &[u8], status: &str) -> String {
    let error: Value = serde_json::from_slice(stdout).unwrap_or_default();
    let text = |name: &str| error.get(name).and_then(Value::as_str).unwrap_or_default().trim().to_owned();
    match (text("msg"), text("details")) {
        (msg, details) if msg.is_empty() && details.is_empty() => format!("it ended with {status} and no reason"),
        (msg, details) if details.is_empty() => msg,
        (msg, details) => format!("{msg} ({details})"),
    }
}

/// The part of a result that people and services need: the interface inside, its address, and the resolver there.
pub fn status(result: &Value) -> NetworkStatus {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let interfaces = list(result.get("interfaces"));
    // The host's ends of veth pairs have no sandbox.
    let inside = |index: usize| interfaces.get(index).is_some_and(|i| !text(i, "sandbox").is_empty());
    let named = |index: usize| interfaces.get(index).map(|i| text(i, "name")).unwrap_or_default();
    let addresses: Vec<(Option<usize>, String)> = list(result.get("ips"))
        .iter()
        .map(|ip| {
            let index = ip.get("interface").and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
            (index, text(ip, "address").split('/').next().unwrap_or_default().to_owned())
        })
        .filter(|(index, address)| !address.is_empty() && index.is_none_or(inside))
        .collect();
    let chosen = addresses.iter().find(|(_, a)| !a.contains(':')).or_else(|| addresses.first());
    let ipv6 = addresses.iter().find(|(_, a)| a.contains(':')).map(|(_, address)| address.clone());
    let interface_name = match chosen {
        Some((Some(index), _)) => named(*index),
        _ => (0..interfaces.len()).find(|i| inside(*i)).map(named).unwrap_or_default(),
    };
    let dns = result.get("dns").cloned().unwrap_or_default();
    let words = |name: &str| -> Vec<String> {
        list(dns.get(name)).iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut searches = words("search");
    searches.extend(Some(text(&dns, "domain")).filter(|d| !d.is_empty() && searches.is_empty()));
    let dns = Dns { servers: words("nameservers"), searches, options: words("options") };
    NetworkStatus {
        interface_name,
        address: chosen.map(|(_, address)| address.clone()).unwrap_or_default(),
        address_ipv6: ipv6.unwrap_or_default(),
        dns: (dns != Dns::default()).then_some(dns),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    fn list() -> NetworkList {
        let text = r#"{"cniVersion": "0.4.0", "name": "n", "plugins": [
            {"type": "a", "x": 1}, {"type": "b", "capabilities": {"portMappings": true}}]}"#;
        NetworkList::parse(text).expect("a list")
    }

    #[test]
    fn lists_and_single_configurations() {
        assert_eq!(list().kinds().collect::<Vec<_>>(), ["a", "b"]);
        let single = NetworkList::parse(r#"{"cniVersion": "0.3.1", "name": "s", "type": "macvlan", "master": "eth1"}"#)
            .expect("one");
        assert_eq!((single.name.as_str(), single.kinds().collect::<Vec<_>>()), ("s", vec!["macvlan"]));
        assert_eq!(single.request(0, None, &[])["master"], "eth1");
        for (wrong, why) in [
            ("{", "EOF"),
            (r#"{"type": "a"}"#, "name"),
            (r#"{"name": "n", "plugins": []}"#, "type"),
            (r#"{"name": "n"}"#, "type"),
        ] {
            let error = NetworkList::parse(wrong).expect_err(wrong);
            assert!(error.contains(why), "{wrong}: {error}");
        }
    }

    #[test]
    fn requests_carry_the_chain_and_the_ports_where_they_are_wanted() {
        let port =
            PortMapping { host_port: 20_001, container_port: 80, protocol: "tcp".into(), host_ip: "10.0.0.1".into() };
        let before = json!({"ips": []});
        let first = list().request(0, None, std::slice::from_ref(&port));
        assert_eq!(first, json!({"type": "a", "x": 1, "name": "n", "cniVersion": "0.4.0"}));
        let second = list().request(1, Some(&before), std::slice::from_ref(&port));
        let mapped = json!([{"hostPort": 20_001, "containerPort": 80, "protocol": "tcp", "hostIP": "10.0.0.1"}]);
        assert_eq!((&second["prevResult"], &second["runtimeConfig"]["portMappings"]), (&before, &mapped));
    }

    #[test]
    fn results() {
        let result = json!({
            "interfaces": [{"name": "nomad"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/ns"}],
            "ips": [{"interface": 0, "address": "10.0.0.1/8"}, {"interface": 2, "address": "fd00::2/64"},
                {"interface": 2, "address": "10.0.0.2/8"}],
            "dns": {"nameservers": ["10.0.0.53"], "domain": "local"},
        });
        let dns = Dns { servers: vec!["10.0.0.53".into()], searches: vec!["local".into()], options: Vec::new() };
        let expected = NetworkStatus {
            interface_name: "eth0".into(),
            address: "10.0.0.2".into(),
            address_ipv6: "fd00::2".into(),
            dns: Some(dns),
        };
        assert_eq!(status(&result), expected);
        assert_eq!(status(&json!({"ips": [{"address": "10.1.1.1/24"}], "dns": {}})).address, "10.1.1.1");
        assert_eq!(status(&Value::Null), NetworkStatus::default());
    }

    #[test]
    fn what_plugins_refuse_is_said_in_their_words() {
        assert_eq!(refusal(br#"{"code": 7, "msg": "no", "details": "really"}"#, ""), "no (really)");
        assert_eq!(refusal(br#"{"code": 7, "msg": "no"}"#, ""), "no");
        assert!(refusal(b"junk", "exit status: 3").contains("exit status: 3"));
    }

    /// Plugins that log their requests. A separate process copies them. A process forked here at the same moment would
    /// hold them open for writing, and then the kernel refuses to execute them.
    fn plugins(dir: &Path, scripts: &[(&str, &str)]) {
        for (name, script) in scripts {
            let (text, file) = (dir.join(format!("{name}.txt")), dir.join(name));
            let note =
                "echo \"$CNI_COMMAND $NAME $CNI_CONTAINERID $CNI_NETNS $CNI_IFNAME $CNI_ARGS\"".replace("$NAME", name);
            fs::write(&text, format!("#!/bin/sh\n{note} >> {}\n{script}", dir.join("calls").display()))
                .expect("script");
            fs::set_permissions(&text, fs::Permissions::from_mode(0o755)).expect("mode");
            assert!(std::process::Command::new("cp").arg(&text).arg(&file).status().expect("cp").success());
        }
    }

    #[tokio::test]
    async fn plugins_are_asked_in_order_and_in_reverse() {
        let dir = tempfile::tempdir().expect("temp dir");
        plugins(dir.path(), &[("a", "cat >/dev/null; echo '{\"ips\":[{\"address\":\"1.2.3.4/8\"}]}'"), ("b", "cat")]);
        let dirs = [dir.path().to_owned()];
        let log = File::create(dir.path().join("log")).expect("log");
        let runner =
            Runner { dirs: &dirs, container: "c", netns: Some(Path::new("/ns")), args: "K=V", ports: &[], log: &log };
        let result = runner.add(&list()).await.expect("add");
        assert_eq!(
            result["prevResult"]["ips"][0]["address"], "1.2.3.4/8",
            "the second is told what the first has answered"
        );
        let gone = Runner { netns: None, ..runner };
        gone.del(&list(), Some(&result)).await.expect("del");
        let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
        assert_eq!(calls, "ADD a c /ns eth0 K=V\nADD b c /ns eth0 K=V\nDEL b c  eth0 K=V\nDEL a c  eth0 K=V\n");
    }

    #[tokio::test]
    async fn a_refusal_ends_an_add_and_no_del() {
        let dir = tempfile::tempdir().expect("temp dir");
        let no = "cat >/dev/null; echo '{\"code\": 11, \"msg\": \"no room\"}'; exit 1";
        plugins(dir.path(), &[("a", "cat >/dev/null"), ("b", no)]);
        let dirs = [dir.path().to_owned()];
        let log = File::create(dir.path().join("log")).expect("log");
        let runner = Runner { dirs: &dirs, container: "c", netns: None, args: "", ports: &[], log: &log };
        assert!(matches!(runner.add(&list()).await, Err(CniError::NoResult { plugin, .. }) if plugin == "a"));
        let error = runner.del(&list(), None).await.expect_err("refused").to_string();
        assert!(error.contains("plugin b refuses DEL: no room"), "{error}");
        let calls = fs::read_to_string(dir.path().join("calls")).expect("calls");
        assert!(calls.ends_with("DEL a c  eth0 \n"), "the others are asked all the same: {calls}");
        let missing = NetworkList::parse(r#"{"name": "n", "type": "../a"}"#).expect("a list");
        assert!(matches!(runner.add(&missing).await, Err(CniError::Absent { .. })));
    }
}
