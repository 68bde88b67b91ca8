//! `cargo xtask interop`: tests against real peers. Each installs what it needs; what cannot run is said plainly, and
//! fails the run in CI.

mod account;
mod airflow;
pub(crate) mod api;
mod artifacts;
mod autoscaler;
mod batch;
mod browser;
pub(crate) mod cgroup_v2;
mod cli_output;
pub(crate) mod cluster;
mod cni;
pub(crate) mod completion;
mod disk_full;
mod docker;
mod docker_conformance;
mod docker_cores;
mod docker_images;
mod docker_jobs;
pub(crate) mod docker_remote;
pub(crate) mod dockerd;
mod driver_template;
mod ecs;
pub(crate) mod etcd;
mod etcd_moved;
pub(crate) mod fleet;
pub(crate) mod former;
mod go_conformance;
mod go_driver;
mod go_exec;
mod go_remote;
mod golden;
mod htcondor;
mod identity_verifier;
pub(crate) mod job;
pub(crate) mod kubernetes;
pub(crate) mod linearizable;
mod moto;
mod registry;
mod remote;
pub(crate) mod slurm;
mod slurm_rest;
mod ssh;
pub(crate) mod sshd;
mod stock_cli;
mod stock_drivers;
mod stock_e2e;
mod stock_jobs_parse;
mod stock_nomad;
mod stock_suites;
mod stock_tls;
mod suite;
mod terraform;
mod three_servers;
mod ui;
mod under_nomad;
mod vault;
mod vm;
mod web;

use std::{path::PathBuf, time::Instant};

use anyhow::{Context as _, Result, bail};

use crate::{book, builds, chaos, model, packages::Skip, peer};

/// Name, what it shows, and the check, which ends with a [`Skip`] where it cannot run.
type Check = (&'static str, &'static str, fn() -> Result<()>);

const CHECKS: &[Check] = &[
    (
        "go-raw-exec",
        "a Go driver built from Nomad's own raw_exec runs a job unmodified, survives kill -9 of itself and of \
            the agent",
        go_driver::raw_exec,
    ),
    (
        "go-device",
        "Nomad's example of a device plugin gives each file of a directory to one task, through kill -9 of plugin and \
            agent",
        go_driver::device,
    ),
    (
        "go-exec",
        "a local driver of the stock packages whose workloads say nothing of their task: executors, plugin, agent and \
            helpers are killed, never two copies, none left",
        go_exec::check,
    ),
    (
        "go-remote",
        "a remote driver of the stock packages with the plain protocol: frozen, stopped, killed, drained, lost, its \
            instances are watched, stopped and replaced",
        go_remote::check,
    ),
    (
        "driver-template",
        "a driver from the template builds outside this workspace and its task outlives it",
        driver_template::check,
    ),
    ("chaos", "each fault of `cargo xtask chaos` once: nothing lost, doubled, leaked or told wrongly", chaos::check),
    (
        "chaos-remote",
        "remote tasks on ssh hosts and an engine while managers, lines, hosts, the engine and the server fail: one \
            instance for each slot, none lost, none left",
        chaos::remote::check,
    ),
    (
        "chaos-clusters",
        "the same with a real Slurm and a real Kubernetes beside them, whose daemons are killed and whose jobs and \
            pods people take away",
        chaos::remote::check_clusters,
    ),
    (
        "chaos-cluster",
        "three servers, three members of etcd, three nodes and two ssh hosts are killed, frozen, cut off and short of \
            disk for five minutes: no acknowledged write is lost, no index goes back, an order explains every answer, \
            no task ends without a cause",
        chaos::cluster::check,
    ),
    (
        "model",
        "more than a million states of two managers, two slots and each kind of runtime, with every fault at any \
            moment: the promises hold in each",
        model::check,
    ),
    (
        "autoscaler",
        "the stock Nomad Autoscaler reads policies and measurements, scales to fixed values and to a target, and hears \
            of a changed policy",
        autoscaler::check,
    ),
    ("disk-full", "a full disk refuses writes with the reason and corrupts nothing", disk_full::check),
    (
        "artifacts",
        "tasks get what git and an S3 that checks signatures have, at the ref and with the keys that the job names",
        artifacts::check,
    ),
    (
        "cgroup-v2",
        "a Debian kernel with cgroup version 2 alone, in a virtual machine: limits hold, trees are killed, cores are \
            kept apart",
        cgroup_v2::check,
    ),
    (
        "cni",
        "network mode bridge with real CNI plugins: ports of the host lead inside, the agent is killed in the middle, \
            nothing is left",
        cni::check,
    ),
    ("book", "the documents as a website: every page of the summary is there, every link leads somewhere", || {
        book::build().map(drop)
    }),
    (
        "browser",
        "a page of another origin in a real browser changes and reads nothing, a trusted one may",
        browser::check,
    ),
    ("ui", "addresses, states, reasons and lanes of managers of the web UI, under Node.js", ui::check),
    (
        "web",
        "the web UI in a real browser: links, live lists, plans, logs, files, terminals, charts, many tabs, hostile \
         names, logins, 10,000 jobs and allocations, accessibility, a manager that is killed, the demo",
        web::check,
    ),
    ("completion", "zsh and fish offer what the agent has, and act on no name", completion::check),
    (
        "docker",
        "a real engine runs a job: logs, exec, stats, out of memory, reserved cores; plugin, agent and engine are \
            killed in turn",
        docker::check,
    ),
    (
        "docker-remote",
        "two nodes manage a container of an engine behind TLS: drained, killed, the engine killed, it is the same \
            container",
        docker_remote::check,
    ),
    (
        "ecs",
        "two nodes manage ECS tasks at moto's server behind a proxy that loses answers, throttles and talks rubbish: \
            one task for each slot",
        ecs::check,
    ),
    (
        "batch",
        "two nodes manage AWS Batch jobs at moto's server, which runs them on a real engine, behind a proxy that loses \
            answers, throttles and talks rubbish: it is the same container; and the conformance suite",
        batch::check,
    ),
    (
        "kubernetes",
        "two nodes manage a pod of a real Kubernetes with the account of the manifest: drained, killed, API server and \
            kubelet killed, it is the same container; and the conformance suite",
        kubernetes::check,
    ),
    (
        "airflow",
        "Airflow and Drover manage a pod each of a real Kubernetes, and both managers die: what becomes of the pods",
        airflow::check,
    ),
    (
        "slurm",
        "two nodes manage a job of a real Slurm: drained, killed, slurmctld and slurmd killed, a node lost, requeued: \
            one process for each slot; and the conformance suite; by the commands, and by slurmrestd",
        slurm::check,
    ),
    (
        "htcondor",
        "two nodes manage a job of a real HTCondor: drained, killed, the schedd killed, its startd killed beside a \
            process that runs on, evicted, put on hold: one process for each slot; and the conformance suite",
        htcondor::check,
    ),
    (
        "etcd",
        "the shared store on real members of etcd, with TLS too: killed, stopped, full, they lose nothing that was \
            acknowledged; restored from a snapshot, they are found out; full, they are given room; agents move there \
            and back",
        etcd::check,
    ),
    (
        "docker-conformance",
        "the conformance suite on docker and docker_remote with a real engine: nothing fails",
        docker_conformance::check,
    ),
    (
        "ssh",
        "remote_exec over real ssh servers in network namespaces, whose lines are cut in the middle of everything",
        ssh::check,
    ),
    (
        "go-conformance",
        "the conformance suite on Nomad's own raw_exec: nothing fails but the faults that are known",
        go_conformance::check,
    ),
    (
        "linearizable",
        "clients register, read, stop and purge jobs while the server is killed: Porcupine finds an order that \
            explains every answer",
        linearizable::check,
    ),
    (
        "three-servers",
        "the page of three servers on one machine to the letter: etcd, TLS, a node, the leader is killed",
        three_servers::check,
    ),
    ("go-host", "Nomad's own plugin client drives a driver and a device plugin of ours", go_driver::ours_under_go),
    (
        "go-templates",
        "Go's text/template with consul-template renders the golden cases as they are recorded",
        golden::templates,
    ),
    ("go-cron", "the cron library of Nomad finds the moments that are recorded of cron expressions", golden::cron),
    (
        "vault",
        "tasks log in to an OpenBao by their identity: secrets in templates, updates, renewals, an outage, revocation; \
            its transit engine wraps the root key",
        vault::check,
    ),
    (
        "identity-verifier",
        "go-oidc and PyJWT find the keys by the issuer, accept tokens of local and remote tasks, before and after a \
            rotation, and refuse changed ones",
        identity_verifier::check,
    ),
    ("stock-api-tests", "the tests of the Go api module, unedited, against our agent", stock_suites::api),
    (
        "stock-driver-tests",
        "the tests that stock drivers have for raw_exec and exec, unedited, through the stock driver harness, against \
            our plugins",
        stock_drivers::check,
    ),
    (
        "stock-e2e",
        "the stock end-to-end tests that need no cloud, unedited, with the stock command line against agents with ACLs \
            on, and with ours",
        stock_e2e::check,
    ),
    (
        "terraform",
        "the acceptance tests of the Terraform provider, unedited, with a real Terraform, against an agent with ACLs",
        terraform::check,
    ),
    ("stock-cli", "Nomad's own command line works with a Drover agent, also with ACLs on", stock_cli::check),
    (
        "cli-output",
        "scripts that read what the stock command line prints can read what ours prints: more than eighty commands of \
            both ask one agent",
        cli_output::check,
    ),
    (
        "stock-tls",
        "certificates of nomad tls for our agents with the stock command line, certificates of drover tls for a stock \
            agent with ours",
        stock_tls::check,
    ),
    (
        "stock-jobs-parse",
        "POST /v1/jobs/parse answers what the reference parser gives, for every job file of the stock tree",
        stock_jobs_parse::check,
    ),
    (
        "stock-nomad-1.9",
        "our drivers run jobs under a stock Nomad 1.9, through every restart and kill",
        stock_nomad::nomad_1_9,
    ),
    ("stock-nomad-newest", "our drivers run jobs under the newest Nomad that the registry serves", stock_nomad::newest),
];

/// Checks that run when they are named only, and why: whoever runs all is told so.
const BY_NAME: &[(&str, &str)] = &[
    ("kubernetes", "its cluster takes ten minutes to build, and then what checks beside it would need of the cores"),
    ("chaos-clusters", "it needs the cluster of `kubernetes`"),
    ("airflow", "it compares, and waits for some minutes until Airflow has noticed the loss"),
    ("terraform", "no registry serves the provider, so TERRAFORM_PROVIDER_SOURCE has to name a checkout of it"),
];

/// The check that only computes, while all others wait for processes most of the time: it runs beside them.
const COMPUTES: &str = "model";

/// Checks that wait for daemons of their own most of the time, and share nothing with others: they run beside them, one
/// after the other. All lanes are of about the same length.
const WAIT: &[&str] = &[
    "slurm",
    "htcondor",
    "ecs",
    "docker",
    "docker-remote",
    "batch",
    "docker-conformance",
    "vault",
    "identity-verifier",
    "stock-driver-tests",
];

/// Runs the checks of these names, or all.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    for name in names {
        if !CHECKS.iter().any(|(n, ..)| n == name) {
            bail!("no check {name:?}; there are {}", CHECKS.iter().map(|(n, ..)| *n).collect::<Vec<_>>().join(", "));
        }
    }
    builds::build(&["drover"])?;
    former::sweep();
    let in_ci = std::env::var_os("CI").is_some_and(|v| v == "true");
    let begun = Instant::now();
    let (mut passed, mut failed, mut skipped) = (0, Vec::new(), Vec::new());
    let of_all = |name: &str| !BY_NAME.iter().any(|(by_name, _)| *by_name == name);
    let asked = |name: &str| if names.is_empty() { of_all(name) } else { names.contains(&name) };
    for (name, why) in BY_NAME.iter().filter(|_| names.is_empty()) {
        println!("interop {name}: NOT PART OF THE WHOLE, run it by name: {why}");
    }
    let mut lanes: [Vec<&'static Check>; 3] = Default::default();
    for check in CHECKS.iter().filter(|(name, ..)| asked(name)) {
        lanes[if check.0 == COMPUTES { 0 } else { usize::from(!WAIT.contains(&check.0)) + 1 }].push(check);
    }
    let [compute, wait, in_turn] = lanes;
    // They begin at once.
    let beside = [(compute, computed as fn(&Check) -> (f64, Result<()>)), (wait, timed)].map(|(checks, run)| {
        std::thread::spawn(move || checks.into_iter().map(|check| (check, run(check))).collect::<Vec<_>>())
    });
    let peers = names.is_empty().then(|| std::thread::spawn(build_peers));
    let in_turn = in_turn.into_iter().map(|check| Ok(vec![(check, timed(check))]));
    let done = in_turn.chain(beside.into_iter().map(std::thread::JoinHandle::join));
    let each =
        |lane: std::thread::Result<Vec<_>>| lane.map_or_else(|_| vec![None], |all| all.into_iter().map(Some).collect());
    for done in done.flat_map(each) {
        let Some(((name, ..), (seconds, result))) = done else { bail!("a check that runs beside others panicked") };
        match result {
            Ok(()) => {
                passed += 1;
                println!("interop {name}: passed in {seconds:.1} s");
            }
            Err(why) if why.is::<Skip>() => {
                skipped.push(*name);
                println!("interop {name}: COULD NOT RUN: {why:#}");
            }
            Err(error) => {
                // What happened comes first; the logs, which are its contexts, can be long.
                let why = error.root_cause().to_string();
                let whole = format!("{error:#}");
                println!("interop {name}: FAILED: {why}\n{whole}");
                failed
                    .push((*name, format!("{}{}", why.chars().take(2000).collect::<String>(), end_of_context(&error))));
            }
        }
    }
    if let Some(peers) = peers {
        drop(peers.join());
    }
    let seconds = begun.elapsed().as_secs();
    println!(
        "{passed} passed, {} failed, {} skipped in {} min {} s",
        failed.len(),
        skipped.len(),
        seconds / 60,
        seconds % 60
    );
    // Once more at the end, where whoever reads only that finds it.
    for (name, why) in &failed {
        println!("interop {name}: FAILED: {why}");
    }
    if !failed.is_empty() || (in_ci && !skipped.is_empty()) {
        let failed: Vec<&str> = failed.iter().map(|(name, _)| *name).collect();
        let names = |which: &str, names: &[&str]| {
            if names.is_empty() { String::new() } else { format!("; {which}: {}", names.join(", ")) }
        };
        bail!("interop{}{}", names("failed", &failed), names("could not run", &skipped));
    }
    Ok(())
}

/// A peer that is built, and what builds it.
type Peer = (&'static str, fn() -> Result<PathBuf>);

/// Peers that take long to build, in the order in which checks ask for them.
const PEERS: &[Peer] = &[
    ("go-raw-exec", || peer::GO_RAW_EXEC.cached()),
    ("go-exec-driver", || peer::GO_EXEC_DRIVER.cached()),
    ("go-remote-driver", || peer::GO_REMOTE_DRIVER.cached()),
    ("nomad-1.9", || peer::nomad_cached(&peer::NOMAD_1_9)),
    ("stock-driver-tests", || peer::driver_tests(&peer::NOMAD_1_9)),
    ("autoscaler", peer::autoscaler),
    ("go-host", || peer::GO_HOST.cached()),
    ("stock-api-tests", || peer::api_tests(&peer::NOMAD_1_9)),
    ("stock-e2e", stock_e2e::tests),
    ("go-jobs-parse", || peer::GO_JOBS_PARSE.cached()),
    ("nomad-newest", || peer::nomad_cached(&peer::NOMAD_NEWEST)),
];

/// Builds peers that take long, for what others leave of the cores. A check that needs one meanwhile waits for it.
pub(crate) fn build_peers() -> Result<()> {
    // Of this thread, and of what it starts.
    rustix::process::setpriority_process(None, 19).context("could not lower the priority of a thread")?;
    for (name, build) in PEERS {
        let begun = Instant::now();
        match build() {
            Ok(_) => eprintln!("peer {name}: there after {:.1} s", begun.elapsed().as_secs_f64()),
            // The check that needs it tries again, and tells why it cannot run.
            Err(error) => eprintln!("peer {name}: could not be built: {error:#}"),
        }
    }
    Ok(())
}

/// The check, and how many seconds it took.
fn timed((name, what, check): &Check) -> (f64, Result<()>) {
    let start = Instant::now();
    eprintln!("interop {name}: {what}");
    let result = check();
    (start.elapsed().as_secs_f64(), result)
}

/// The same, for what the others leave of the cores.
fn computed(check: &Check) -> (f64, Result<()>) {
    // Of this thread, and of those that it begins.
    match rustix::process::setpriority_process(None, 19) {
        Ok(()) => timed(check),
        Err(error) => (0.0, Err(anyhow::anyhow!("could not lower the priority of a thread: {error}"))),
    }
}

/// The last lines of the outermost context, which is the log of an agent as a rule; empty when there is none.
fn end_of_context(error: &anyhow::Error) -> String {
    const LINES: usize = 12;
    let context = error.to_string();
    let lines: Vec<&str> = context.lines().collect();
    if lines.len() < 2 || error.chain().len() < 2 {
        return String::new();
    }
    lines[lines.len().saturating_sub(LINES)..]
        .iter()
        .map(|line| format!("\n  | {}", line.chars().take(400).collect::<String>()))
        .collect()
}
