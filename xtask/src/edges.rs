//! Which of our crates may depend on which. A new edge is a decision: it is made here, visibly, or the test fails.

/// `(crate, what it may depend on)`; build and normal dependencies. Dev-dependencies are free, but for the pure crates.
#[cfg(test)]
const ALLOWED: &[(&str, &[&str])] = &[
    // Published: these know nothing of crates/.
    ("driver-proto", &[]),
    ("driver-check", &["driver-proto"]),
    ("driver-sdk", &["driver-proto", "driver-sdk-derive"]),
    ("driver-sdk-derive", &[]),
    ("executor-proto", &[]),
    ("executor", &["executor-proto"]),
    ("executor-client", &["executor", "executor-proto"]),
    ("heap", &[]),
    ("processes", &[]),
    ("process-driver", &["driver-sdk", "executor-client"]),
    // Drivers see lib/ only.
    ("docker", &["driver-sdk"]),
    ("ecs", &["driver-sdk"]),
    ("exec", &["driver-sdk", "executor-client", "process-driver"]),
    ("mock", &["driver-sdk"]),
    ("raw-exec", &["driver-sdk", "executor-client", "process-driver"]),
    ("remote-exec", &["driver-sdk", "executor-client", "process-driver"]),
    // Pure: no runtime, clock, randomness, files, network.
    ("model", &[]),
    ("hcl-lang", &[]),
    ("jobspec", &["hcl-lang", "model"]),
    ("state", &["model"]),
    ("scheduler", &["model", "state"]),
    ("lifecycle", &["model"]),
    ("template", &[]),
    // Shells around them.
    ("api", &["model"]),
    ("artifact", &[]),
    ("store", &["model", "state"]),
    ("driver-host", &["driver-proto", "hcl-lang", "processes"]),
    (
        "client",
        &["api", "artifact", "driver-host", "driver-proto", "executor-client", "hcl-lang", "lifecycle", "model", "processes", "template"],
    ),
    ("server", &["api", "jobspec", "lifecycle", "model", "scheduler", "state", "store", "template"]),
    (
        "cli",
        &[
            "api",
            "artifact",
            "client",
            "docker",
            "driver-check",
            "driver-host",
            "driver-sdk",
            "exec",
            "hcl-lang",
            "heap",
            "jobspec",
            "mock",
            "model",
            "raw-exec",
            "remote-exec",
            "server",
        ],
    ),
    ("xtask", &[]),
];

/// Crates that may link neither a runtime nor a network stack, at any depth of their manifests.
#[cfg(test)]
const PURE: &[&str] = &["model", "hcl-lang", "jobspec", "state", "scheduler", "lifecycle", "template"];

#[cfg(test)]
const IMPURE_DEPENDENCIES: &[&str] = &["tokio", "tonic", "hyper", "axum", "rusqlite", "rustix", "libc", "rand", "reqwest", "async-trait"];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::{ALLOWED, IMPURE_DEPENDENCIES, PURE};
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

    #[test]
    fn pure_crates_link_nothing_impure() {
        let metadata = workspace::metadata().expect("cargo metadata");
        let mut wrong = Vec::new();
        for package in metadata["packages"].as_array().expect("packages") {
            let name = package["name"].as_str().expect("name");
            if PURE.contains(&name) {
                wrong.extend(names(package, &[None]).filter(|d| IMPURE_DEPENDENCIES.contains(d)).map(|d| format!("{name} -> {d}")));
            }
        }
        assert!(wrong.is_empty(), "pure crates must not depend on: {wrong:#?}");
    }
}
