//! The stock project's end-to-end tests that need no cloud, unedited, against a Drover agent: with the stock command
//! line and with ours.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};

use super::{
    cluster::{Agent, program},
    stock_suites::{Place, Results, list},
};
use crate::{local::until, packages, peer};

/// Packages that are run, each with an agent of its own: their tests collect, pause and fill the whole cluster.
const RUN: &[&str] = &[
    "acl",
    "alloc_logs",
    "artifact",
    "auth",
    "example",
    "isolation",
    "jobsubmissions",
    "namespaces",
    "operator_scheduler",
    "overlap",
    "oversubscription",
    "periodic",
    "rawexec",
    "rescheduling",
    "task_schedule",
];
/// Suites of the project's older framework, all in one package. The others need docker images from the network, Consul,
/// or four nodes (Affinity, Deployment).
const SUITES: &str = "-test.run=^TestE2E$/^(Scaling|ScalingPolicies|TaskEvents)$";
/// The test of those suites that needs a docker image from the network.
const NO_IMAGE: &str = "-test.skip=///TestScalingBasicWithSystemSchedule";
/// What the package of those suites is called here.
const FRAMEWORK: &str = "framework";
/// Tests of packages that are not run: they need java, docker images from the network, or a driver that is not part of
/// the project.
const LEFT_OUT: &[(&str, &str)] = &[
    ("isolation", "-test.skip=/^(testJava.*|testTaskImageChroot)$"),
    ("oversubscription", "-test.skip=/^(testDocker|testExec)$"),
];
/// Packages that are not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("allocexec", "needs docker images from the network"),
    ("clientstate", "restarts agents by systemd"),
    ("cni", "needs a node with CNI plugins that the project's own cloud has; `cni` of these checks has its own"),
    ("connect", "needs Consul"),
    ("consul", "needs Consul"),
    ("consulcompat", "needs Consul"),
    ("consultemplate", "needs Consul"),
    ("disconnectedclients", "needs several nodes, and docker images from the network"),
    ("docker", "needs docker images from the network"),
    ("exec2", "needs a driver that is not part of the project"),
    ("keyring", "restarts agents of the project's own cloud"),
    ("metrics", "needs drivers that are not part of the project"),
    ("nodedrain", "needs several nodes, and docker images from the network"),
    ("nomadexec", "needs docker images from the network"),
    ("pledge", "needs a driver that is not part of the project"),
    ("podman", "needs a driver that is not part of the project"),
    ("servicediscovery", "needs several nodes and addresses of the project's own cloud"),
    ("spread", "needs nodes in several datacenters"),
    ("vaultcompat", "needs Vault"),
    ("vaultsecrets", "needs Vault"),
    ("volumes", "needs docker images from the network"),
    ("workload_id", "needs docker images from the network"),
];
/// Packages that want access control. With the stock command line the others have it as well: each of their requests is
/// decided.
const SECURED: &[&str] = &["acl", "auth", "jobsubmissions"];
/// Limit of one package.
const BOUND: Duration = Duration::from_secs(400);
/// How many packages are run at the same time, for each command line.
const AT_ONCE: usize = 3;
/// Packages whose limits a busy machine can break: whether that is what a failure says shows when the package is played
/// again, alone. All others count at once.
const HASTY: &[(&str, &str)] =
    &[("rescheduling", "its deployments fail when a task runs a second after its node has heard of it")];

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    let source = peer::nomad_module(&peer::NOMAD_1_9)?.join("e2e");
    every_package_is_spoken_for(&source)?;
    let tests = tests()?;
    let stock = peer::nomad_cached(&peer::NOMAD_1_9)?;
    let both = [("nomad", stock), ("drover", program())];
    let mut wrong = Vec::new();
    let done: Vec<Result<Results>> = std::thread::scope(|scope| {
        let (tests, source) = (&tests, &source);
        let runs: Vec<_> = both.iter().map(|(name, cli)| scope.spawn(move || with(name, cli, tests, source))).collect();
        runs.into_iter().map(|run| run.join().unwrap_or_else(|_| Err(anyhow!("a thread of the check died")))).collect()
    });
    let listed = list("stock-e2e.txt")?;
    for ((name, cli), results) in both.iter().zip(done) {
        let mut results = results.with_context(|| format!("with the command line {name}"))?;
        let listed = of(&listed, name);
        let against = results.against(&listed);
        for (one, why) in HASTY {
            let of_it = format!("{one}.");
            if let Some(first) = against.iter().find(|text| text.starts_with(&of_it)) {
                eprintln!("  {one} is played again, alone, with the command line {name}: {why}; {first}");
                results.read(&package(one, name, cli, &tests, &source)?, &of_it)?;
            }
        }
        eprintln!("  command line {name}: {}", results.summary());
        wrong.extend(results.against(&listed).into_iter().map(|text| format!("{name}: {text}")));
    }
    ensure!(wrong.is_empty(), "{} contradictions to xtask/interop/stock-e2e.txt:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// The compiled tests, built once.
pub(super) fn tests() -> Result<PathBuf> {
    peer::e2e_tests(&peer::NOMAD_1_9, RUN)
}

/// The part of the list that holds for a command line: `nomad:` and `drover:` before a name limit a line to one.
fn of(listed: &BTreeMap<String, String>, cli: &str) -> BTreeMap<String, String> {
    let name = |line: &str| match line.split_once(':') {
        Some((only, name)) => (only == cli).then(|| name.to_owned()),
        None => Some(line.to_owned()),
    };
    listed.iter().filter_map(|(line, reason)| Some((name(line)?, reason.clone()))).collect()
}

/// No package with tests is forgotten, and none is spoken for that is not there.
fn every_package_is_spoken_for(source: &Path) -> Result<()> {
    let mut there = BTreeSet::new();
    for entry in fs::read_dir(source)? {
        let dir = entry?.path();
        let has_tests = dir.is_dir()
            && fs::read_dir(&dir)?.flatten().any(|f| {
                f.file_name().to_string_lossy().ends_with("_test.go")
                    && fs::read_to_string(f.path())
                        .is_ok_and(|text| text.lines().any(|line| line.starts_with("func Test")))
            });
        if has_tests {
            there.extend(dir.file_name().map(|name| name.to_string_lossy().into_owned()));
        }
    }
    let spoken_for: BTreeSet<String> =
        RUN.iter().chain(NOT_RUN.iter().map(|(name, _)| name)).map(|name| (*name).to_owned()).collect();
    ensure!(there == spoken_for, "packages differ: {:?}", there.symmetric_difference(&spoken_for).collect::<Vec<_>>());
    Ok(())
}

/// Runs one package with one command line, and returns its events.
fn package(package: &str, name: &str, cli: &Path, tests: &Path, source: &Path) -> Result<String> {
    let secured = name == "nomad" || SECURED.contains(&package);
    // The project's own cluster has tokens that expire as soon.
    let config = if secured { "acl {\n  enabled = true\n  token_min_expiration_ttl = \"1s\"\n}\n" } else { "" };
    let mut agent = Agent::start(&format!("e2e-{name}-{package}-agent"), &[], config)?;
    let token = if secured { agent.bootstrap()? } else { String::new() };
    until("a ready node", Duration::from_secs(60), || {
        let nodes = agent.get("/v1/nodes")?;
        Ok((nodes[0]["Status"] == "ready" && nodes[0]["Drivers"]["raw_exec"]["Detected"] == true).then_some(()))
    })?;
    let place = Place::new(&format!("e2e-{name}-{package}"))?;
    place.offer("nomad", cli)?;
    // Suites of the older framework ask whether the cluster is here.
    let (dir, args) = match package {
        FRAMEWORK => (source.to_owned(), vec![SUITES, NO_IMAGE, "-local", "-forceRun"]),
        _ => (source.join(package), LEFT_OUT.iter().filter(|(of, _)| *of == package).map(|(_, skip)| *skip).collect()),
    };
    let address = agent.address();
    place.run(
        &tests.join(format!("{package}.test")),
        &dir,
        &args,
        &[("NOMAD_ADDR", address.as_str()), ("NOMAD_TOKEN", token.as_str()), ("NOMAD_E2E", "1")],
        BOUND,
    )
}

/// Runs everything with one command line.
fn with(name: &str, cli: &Path, tests: &Path, source: &Path) -> Result<Results> {
    let waiting: Mutex<Vec<&'static str>> = Mutex::new(RUN.iter().copied().chain([FRAMEWORK]).collect());
    let next = || waiting.lock().ok().and_then(|mut waiting| waiting.pop());
    let run = |one: &'static str| {
        Ok((one, package(one, name, cli, tests, source).with_context(|| format!("package {one}"))?))
    };
    let events: Vec<Result<Vec<(&str, String)>>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE)
            .map(|_| scope.spawn(|| std::iter::from_fn(next).map(run).collect::<Result<Vec<_>>>()))
            .collect();
        workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err(anyhow!("a thread of the check died")))).collect()
    });
    let mut results = Results::default();
    for (package, events) in events.into_iter().collect::<Result<Vec<_>>>()?.concat() {
        results.read(&events, &format!("{package}."))?;
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_hold_for_one_command_line() {
        let listed: BTreeMap<String, String> =
            [("a.TestX", "both"), ("nomad:a.TestY", "stock"), ("drover:a.TestZ", "ours")]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .into();
        assert_eq!(of(&listed, "nomad").into_keys().collect::<Vec<_>>(), ["a.TestX", "a.TestY"]);
        assert_eq!(of(&listed, "drover").into_keys().collect::<Vec<_>>(), ["a.TestX", "a.TestZ"]);
    }
}
