//! The programs of this workspace that checks drive, built as `cargo test --workspace` builds them.
//!
//! Cargo unites the features of what it builds in one go. So `cargo build -p cli` after the tests would build a hundred
//! crates once more, with fewer features. Here everything is chosen as the tests choose it: the whole workspace, and an
//! example, because cargo turns the features of development dependencies on only where an example, a test or a bench is
//! built.

use anyhow::Result;

use crate::{process::Run, workspace};

/// Examples that checks drive; they also bring the features of development dependencies in.
const EXAMPLES: [&str; 2] = ["rogue_node", "simulated_nodes"];

/// Builds these programs and the examples that checks drive.
pub(crate) fn build(programs: &[&str]) -> Result<()> {
    Run::new("cargo", words(programs)).dir(workspace::root()).run()
}

fn words<'a>(programs: &[&'a str]) -> Vec<&'a str> {
    let programs = programs.iter().flat_map(|name| ["--bin", *name]);
    let examples = EXAMPLES.iter().flat_map(|name| ["--example", *name]);
    ["build", "--workspace"].into_iter().chain(programs).chain(examples).collect()
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        hash::{DefaultHasher, Hash, Hasher},
    };

    use serde_json::{Value, json};

    use super::words;
    use crate::{interop::completion, model, process::Run, workspace};

    /// Cargo's plan of a build. It is not a stable feature, so cargo is told to be patient; nothing is built.
    fn plan<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
        let words = words.into_iter().chain(["--offline", "-Zunstable-options", "--unit-graph"]);
        let cargo = Run::new("cargo", words).dir(workspace::root()).env("RUSTC_BOOTSTRAP", "1");
        // The rule of a stable cargo, whatever the caller has set.
        let text = cargo
            .env("CARGO_UNSTABLE_FEATURE_UNIFICATION", "false")
            .env("CARGO_RESOLVER_FEATURE_UNIFICATION", "selected")
            .output();
        serde_json::from_str(&text.expect("cargo plans")).expect("JSON")
    }

    /// What is built, each step with all that goes into it: two with the same number are the same work.
    fn steps(plan: &Value) -> BTreeSet<(u64, String)> {
        fn step(units: &[Value], at: usize, known: &mut [Option<u64>]) -> u64 {
            if let Some(hash) = known[at] {
                return hash;
            }
            let unit = &units[at];
            let mut hasher = DefaultHasher::new();
            for part in ["pkg_id", "platform", "mode", "features"] {
                unit[part].to_string().hash(&mut hasher);
            }
            (unit["target"]["name"].to_string(), unit["target"]["kind"].to_string()).hash(&mut hasher);
            // Tests and programs have profiles of different names and equal content.
            let mut profile = unit["profile"].clone();
            profile.as_object_mut().map(|profile| profile.remove("name"));
            profile.to_string().hash(&mut hasher);
            let mut below: Vec<u64> = Vec::new();
            for dependency in unit["dependencies"].as_array().into_iter().flatten() {
                let index = dependency["index"].as_u64().and_then(|i| usize::try_from(i).ok()).expect("an index");
                below.push(step(units, index, known));
            }
            below.sort_unstable();
            below.hash(&mut hasher);
            *known[at].insert(hasher.finish())
        }
        let units = plan["units"].as_array().expect("units");
        let mut known = vec![None; units.len()];
        let name =
            |unit: &Value| unit["pkg_id"].as_str().and_then(|id| id.rsplit('/').next()).unwrap_or_default().to_owned();
        units.iter().enumerate().map(|(at, unit)| (step(units, at, &mut known), name(unit))).collect()
    }

    /// What `second` builds after `first`.
    fn again(first: &Value, second: &Value) -> Vec<String> {
        let built = steps(first);
        steps(second).into_iter().filter(|step| !built.contains(step)).map(|(_, name)| name).collect()
    }

    #[test]
    fn checks_build_nothing_that_the_tests_have_built() {
        let tests = plan(["test", "--workspace", "--no-run"]);
        let programs = [
            "drover",
            "drover-driver-ecs",
            "drover-driver-batch",
            "drover-driver-raw-exec",
            "drover-driver-mock",
            "drover-driver-remote-exec",
            "simulate",
        ];
        assert_eq!(
            again(&tests, &plan(words(&programs))),
            Vec::<String>::new(),
            "features differ between the builds of .ci/run"
        );
        let model = plan(["test", "--no-run"].into_iter().chain(model::BUILT));
        assert_eq!(
            again(&tests, &model),
            Vec::<String>::new(),
            "features differ between the tests and those that the model is played with"
        );
        let shells = plan(["test", "--no-run"].into_iter().chain(completion::CHOSEN));
        assert_eq!(
            again(&tests, &shells),
            Vec::<String>::new(),
            "features differ between the tests and those of completion"
        );
        // The tool itself has no test that runs it, so its program remains to be linked.
        let itself: Vec<String> = again(&tests, &plan(words(&["xtask"])));
        assert!(itself.iter().all(|name| name.starts_with("xtask")), "{itself:?} are built again for `xtask`");
    }

    #[test]
    fn other_features_below_are_seen_as_other_work() {
        let unit = |id: &str, features: &[&str], below: &[usize]| {
            let below: Vec<_> = below.iter().map(|index| json!({"index": index})).collect();
            json!({"pkg_id": id, "target": {"name": id, "kind": ["lib"]}, "profile": {"name": "dev"}, "mode": "build",
                   "features": features, "dependencies": below})
        };
        let first = json!({"units": [unit("syn", &["full", "visit"], &[]), unit("ours", &[], &[0])]});
        let second = json!({"units": [unit("ours", &[], &[1]), unit("syn", &["full"], &[])]});
        assert_eq!(again(&first, &first), Vec::<String>::new());
        let mut seen = again(&first, &second);
        seen.sort_unstable();
        assert_eq!(seen, ["ours", "syn"]);
    }
}
