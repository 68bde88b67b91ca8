//! Drover itself in the cluster: the manifest that operators get, with what this cluster does not have replaced: names
//! (there is no DNS), the address of the API (there is no Service), storage.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Cluster, IMAGE, script};
use crate::{
    builds,
    interop::cluster::program,
    local::{BOUND, until},
    process::Run,
    workspace,
};

/// Namespace of the agents, and the image that the manifest names.
const AGENTS: &str = "drover";
const NAMED: &str = "registry.example/drover:0.1.0";
const OURS: &str = "peer.test/drover:1";

/// A pod that waits for its end.
const JOB: &str = r#"
job "within" {
  group "g" {
    task "t" {
      driver = "kubernetes"
      config {
        image        = "IMAGE"
        command      = "/bin/sleep"
        args         = ["100000"]
        grace_period = "1s"
      }
    }
  }
}
"#;

/// Two nodes in pods manage a pod; the manager's pod is deleted.
pub(super) fn agents(cluster: &Cluster, plugin: &Path) -> Result<()> {
    builds::build(&["drover"])?;
    let tree = image(cluster, plugin)?;
    script(&["load", &cluster.dir.display().to_string(), &tree.display().to_string(), OURS]).quiet().run()?;
    fs::remove_dir_all(&tree)?;
    let manifest = Manifest::of(cluster)?;
    certificates(cluster)?;
    storage(cluster)?;
    // The nodes need the server's address.
    manifest.apply(cluster, "192.0.2.1", 0)?;
    let address = until("a ready server", 2 * BOUND, || {
        let pod: Value = serde_json::from_str(&cluster.agents(&["get", "pod", "server-0", "-o", "json"])?)?;
        let ready = pod["status"]["containerStatuses"][0]["ready"] == true;
        Ok(pod["status"]["podIP"].as_str().filter(|_| ready).map(str::to_owned))
    })?;
    let first: Value = serde_json::from_str(&cluster.says(&["acl", "bootstrap", "-json"])?)?;
    let token = &*format!("-token={}", first["SecretID"].as_str().context("a token")?);
    manifest.apply(cluster, &address, 2)?;
    until("two nodes with the driver", 2 * BOUND, || {
        let nodes: Vec<Value> = serde_json::from_str(&cluster.says(&["node", "status", "-json", token])?)?;
        let fit = |node: &&Value| node["Status"] == "ready" && node["Drivers"]["kubernetes"]["Healthy"] == true;
        Ok((nodes.iter().filter(fit).count() == 2).then_some(()))
    })?;
    cluster.drover(&["job", "run", "-detach", token, "-"]).input(JOB.replace("IMAGE", IMAGE)).output()?;
    let record = || -> Result<Value> {
        let told: Value = serde_json::from_str(&cluster.says(&["remote", "list", "-json", token])?)?;
        Ok(told[0].clone())
    };
    let managed = |not: &str| {
        let record = record()?;
        let runs = record["Observed"]["State"] == "Running";
        let manager = record["ManagerName"].as_str().filter(|name| runs && !name.is_empty() && *name != not);
        Ok(manager.map(str::to_owned))
    };
    let manager = until("a managed pod", 2 * BOUND, || managed(""))?;
    let pod = cluster.one()?;
    // A node is called as its pod is.
    cluster.agents(&["delete", "pod", &manager, "--wait=false"])?;
    until("another manager", 2 * BOUND, || managed(&manager))?;
    ensure!(cluster.one()? == pod, "another pod or container after the manager's pod was deleted");
    cluster.says(&["job", "stop", "-purge", "-detach", token, "within"])?;
    cluster.until_empty()?;
    until("no record", BOUND, || Ok(record()?.is_null().then_some(())))?;
    // The account of the other checks is in the same namespace.
    cluster.agents(&["delete", "statefulset,deployment,pod", "--all", "--wait=false"]).map(drop)
}

/// A tree with the programs, as small as they get, and the libraries that debug builds need.
fn image(cluster: &Cluster, plugin: &Path) -> Result<PathBuf> {
    let tree = cluster.dir.join("image");
    let programs = [(program(), "usr/local/bin/drover"), (plugin.to_owned(), "opt/drover/plugins/kubernetes")];
    for (from, to) in programs {
        let to = tree.join(to);
        fs::create_dir_all(to.parent().context("a directory")?)?;
        let libraries = Run::new("ldd", [&from]).output()?;
        Run::new("strip", [Path::new("-o"), &to, &from]).run()?;
        for path in libraries.lines().filter_map(|l| l.split_whitespace().find(|word| word.starts_with('/'))) {
            let to = tree.join(path.trim_start_matches('/'));
            fs::create_dir_all(to.parent().context("a directory")?)?;
            fs::copy(path, to)?;
        }
    }
    fs::create_dir_all(tree.join("tmp"))?;
    Ok(tree)
}

struct Manifest(String);

impl Manifest {
    /// The one of the examples, for this cluster.
    fn of(cluster: &Cluster) -> Result<Self> {
        let text = fs::read_to_string(workspace::root().join("examples/kubernetes/drover.yaml"))?;
        let config = fs::read_to_string(cluster.kubeconfig())?;
        let api = config.split("https://").nth(1).and_then(|rest| rest.split('"').next()).context("an address")?;
        let (host, port) = api.split_once(':').context("a port of the API")?;
        let start = "          args: [agent, -config, /etc/drover/agents/node.hcl]\n";
        let with = format!(
            "{start}          env:\n            - {{name: KUBERNETES_SERVICE_HOST, value: {host:?}}}\n            - \
                {{name: KUBERNETES_SERVICE_PORT, value: {port:?}}}\n"
        );
        ensure!(text.contains(start) && text.contains(NAMED), "the manifest is another one");
        let text = text.replace(start, &with).replace(NAMED, &format!("{OURS}\n          imagePullPolicy: Never"));
        Ok(Self(text))
    }

    fn apply(&self, cluster: &Cluster, server: &str, nodes: usize) -> Result<()> {
        let text = self.0.replace("server.drover.svc", server).replace("replicas: 2", &format!("replicas: {nodes}"));
        let file = cluster.dir.join("drover.yaml");
        fs::write(&file, text)?;
        cluster.kubectl(&["apply", "-f", &file.display().to_string()]).map(drop)
    }
}

/// The secret of the guide.
fn certificates(cluster: &Cluster) -> Result<()> {
    let dir = cluster.dir.join("tls");
    fs::create_dir_all(&dir)?;
    for args in [vec!["ca", "create"], vec!["cert", "create", "-server"], vec!["cert", "create", "-client"]] {
        Run::new(program(), ["tls"].into_iter().chain(args)).dir(&dir).quiet().output()?;
    }
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": AGENTS}});
    cluster.create(&["apply"], &namespace)?;
    let files = [
        "nomad-agent-ca",
        "global-server-nomad",
        "global-server-nomad-key",
        "global-client-nomad",
        "global-client-nomad-key",
    ]
    .map(|name| format!("--from-file={}", dir.join(format!("{name}.pem")).display()));
    let args = ["create", "secret", "generic", "drover-tls"].into_iter().chain(files.iter().map(String::as_str));
    cluster.agents(&args.collect::<Vec<_>>()).map(drop)
}

/// A directory for the server's claim: this cluster makes none by itself.
fn storage(cluster: &Cluster) -> Result<()> {
    let dir = cluster.dir.join("storage");
    fs::create_dir_all(&dir)?;
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o777))?;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "server"}, "spec": {
        "capacity": {"storage": "5Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": dir}}});
    cluster.create(&["apply"], &volume)
}

impl Cluster {
    /// `kubectl` in the namespace of the agents.
    fn agents(&self, args: &[&str]) -> Result<String> {
        self.kubectl(&["-n", AGENTS].into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
    }

    /// What the command line beside the server prints.
    fn says(&self, args: &[&str]) -> Result<String> {
        self.drover(args).output()
    }

    fn drover(&self, args: &[&str]) -> Run {
        let begin = ["-n", AGENTS, "exec", "-i", "server-0", "--", "drover"];
        self.asks(&begin.into_iter().chain(args.iter().copied()).collect::<Vec<_>>())
    }
}
