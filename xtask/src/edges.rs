//! Which of our crates may depend on which. A new edge is a decision: it is made here, visibly, or the test fails.

/// `(crate, what it may depend on)`; build and normal dependencies. Dev-dependencies are free, but for the pure crates.
#[cfg(test)]
const ALLOWED: &[(&str, &[&str])] = &[
    // Published: these know nothing of crates/.
    ("driver-proto", &[]),
    ("driver-check", &["driver-proto"]),
    ("driver-sdk", &["driver-proto", "driver-sdk-derive", "heap", "undumpable"]),
    ("driver-sdk-derive", &[]),
    ("cgroup", &["executor-proto"]),
    ("executor-proto", &[]),
    ("blocking", &[]),
    ("clock", &[]),
    ("etcd", &["tls"]),
    // A test's other side; linked into no program.
    ("etcd-fake", &["etcd", "tls"]),
    ("oidc-fake", &[]),
    ("executor", &["cgroup", "executor-proto", "undumpable"]),
    ("executor-client", &["cgroup", "executor", "executor-proto", "open-files"]),
    ("allocator", &[]),
    ("heap", &[]),
    ("open-files", &[]),
    ("undumpable", &[]),
    ("processes", &[]),
    ("skip", &[]),
    ("testkit", &[]),
    ("tls", &[]),
    ("fetch", &["tls"]),
    ("process-driver", &["driver-sdk", "executor-client"]),
    ("aws", &["driver-sdk"]),
    ("hpc", &["driver-sdk"]),
    // Drivers see lib/ only.
    ("batch", &["aws", "driver-sdk"]),
    ("docker", &["driver-sdk", "tls"]),
    ("ecs", &["aws", "driver-sdk"]),
    ("exec", &["driver-sdk", "executor-client", "process-driver"]),
    ("htcondor", &["driver-sdk", "hpc"]),
    ("kubernetes", &["driver-sdk"]),
    ("mock", &["driver-sdk"]),
    ("raw-exec", &["driver-sdk", "executor-client", "process-driver"]),
    ("remote-exec", &["driver-sdk", "executor-client", "process-driver"]),
    ("slurm", &["driver-sdk", "fetch", "hpc", "tls"]),
    // Pure: no runtime, clock, randomness, files, network.
    ("access", &["hcl-lang"]),
    ("filter", &[]),
    ("login", &["filter"]),
    ("model", &["model-derive"]),
    ("model-derive", &[]),
    ("hcl-lang", &[]),
    ("jobspec", &["hcl-lang", "model"]),
    ("state", &["model"]),
    ("scheduler", &["model", "state"]),
    ("lifecycle", &["model"]),
    ("control", &["access", "lifecycle", "login", "model", "scheduler", "state", "template"]),
    ("template", &[]),
    // Shells around them.
    ("api", &["filter", "model", "tls"]),
    ("oidc", &["fetch", "login", "tls"]),
    ("vault", &["fetch", "model", "tls"]),
    ("artifact", &[]),
    ("store", &["clock", "etcd", "model", "state", "tls"]),
    ("driver-host", &["blocking", "driver-proto", "hcl-lang", "open-files", "processes"]),
    // The node, from what it is told and what it writes down to what it does.
    ("node-config", &["artifact", "model", "tls", "vault"]),
    ("node-record", &["api", "clock", "lifecycle", "model"]),
    (
        "host",
        &[
            "api",
            "blocking",
            "cgroup",
            "driver-proto",
            "executor-client",
            "hcl-lang",
            "lifecycle",
            "model",
            "node-config",
            "processes",
        ],
    ),
    ("remote-manager", &["api", "blocking", "driver-host", "host", "lifecycle", "model", "node-record"]),
    (
        "hooks",
        &[
            "api",
            "artifact",
            "blocking",
            "driver-host",
            "driver-proto",
            "executor-client",
            "hcl-lang",
            "host",
            "lifecycle",
            "model",
            "node-config",
            "node-record",
            "remote-manager",
            "template",
            "tls",
            "vault",
        ],
    ),
    (
        "client",
        &[
            "api",
            "blocking",
            "driver-host",
            "executor-client",
            "hooks",
            "host",
            "lifecycle",
            "model",
            "node-config",
            "node-record",
            "remote-manager",
            "tls",
            "vault",
        ],
    ),
    // The servers: nodes come in through the gateway, which knows nothing of what is behind it.
    ("node-gateway", &["api", "control", "lifecycle", "model", "state", "tls"]),
    (
        "server",
        &[
            "api",
            "blocking",
            "clock",
            "control",
            "hcl-lang",
            "jobspec",
            "lifecycle",
            "login",
            "model",
            "node-gateway",
            "oidc",
            "scheduler",
            "state",
            "store",
            "tls",
        ],
    ),
    // Over the server's handle; what composes the agent serves it.
    ("ui", &[]),
    (
        "server-http",
        &[
            "access",
            "api",
            "control",
            "fetch",
            "jobspec",
            "lifecycle",
            "login",
            "model",
            "server",
            "state",
            "tls",
            "ui",
        ],
    ),
    (
        "cli",
        &[
            "allocator",
            "api",
            "artifact",
            "client",
            "clock",
            "docker",
            "driver-check",
            "driver-host",
            "driver-proto",
            "driver-sdk",
            "exec",
            "executor",
            "filter",
            "hcl-lang",
            "heap",
            "host",
            "jobspec",
            "mock",
            "model",
            "open-files",
            "raw-exec",
            "remote-exec",
            "server",
            "server-http",
            "store",
            "template",
            "tls",
            "undumpable",
        ],
    ),
    // Plays all of them; linked into nothing.
    ("sim", &["blocking", "client", "clock", "driver-host", "driver-sdk", "model", "server", "state", "store"]),
    ("fleet", &["api", "model", "open-files"]),
    ("xtask", &["oidc-fake", "testkit"]),
];

/// Crates that know no clock, randomness, files, network or runtime; `tidy::purity` checks what they use and what they
/// link at any depth.
pub(crate) const PURE: &[&str] = &[
    "access",
    "filter",
    "login",
    "model",
    "hcl-lang",
    "jobspec",
    "state",
    "scheduler",
    "lifecycle",
    "control",
    "template",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::ALLOWED;
    use crate::workspace;

    fn names<'a>(package: &'a Value, kinds: &'a [Option<&'a str>]) -> impl Iterator<Item = &'a str> {
        package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(move |d| kinds.contains(&d["kind"].as_str()))
            .filter_map(|d| d["name"].as_str())
    }

    #[test]
    fn crates_depend_only_on_what_is_allowed() {
        let metadata = workspace::metadata().expect("cargo metadata");
        let packages = metadata["packages"].as_array().expect("packages");
        let ours: BTreeSet<&str> = packages.iter().filter_map(|p| p["name"].as_str()).collect();
        let mut wrong = Vec::new();
        for package in packages {
            let name = package["name"].as_str().expect("name");
            let Some((_, allowed)) = ALLOWED.iter().find(|(n, _)| *n == name) else {
                wrong.push(format!("{name} is not in the list"));
                continue;
            };
            for dependency in names(package, &[None, Some("build")]).filter(|d| ours.contains(d)) {
                if !allowed.contains(&dependency) {
                    wrong.push(format!("{name} -> {dependency}"));
                }
            }
        }
        for (name, _) in ALLOWED {
            if !ours.contains(name) {
                wrong.push(format!("{name} is in the list but not in the workspace"));
            }
        }
        assert!(wrong.is_empty(), "edges that xtask/src/edges.rs does not allow: {wrong:#?}");
    }
    /// One place makes the TLS configurations, so that roles, versions and checks are the same everywhere. Downloads
    /// of artifacts have the platform's rules, and the OIDC crate reads keys.
    #[test]
    fn tls_configurations_are_made_in_one_crate() {
        let metadata = workspace::metadata().expect("cargo metadata");
        let packages = metadata["packages"].as_array().expect("packages");
        let makes = |package: &&Value| names(package, &[None]).any(|d| d == "tokio-rustls" || d == "rustls");
        let found: BTreeSet<&str> = packages.iter().filter(makes).filter_map(|p| p["name"].as_str()).collect();
        assert_eq!(found, BTreeSet::from(["artifact", "oidc", "tls"]));
    }
}
