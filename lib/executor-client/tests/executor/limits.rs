//! Limits as the kernel enforces them, in any hierarchies of the host.

use std::path::{Path, PathBuf};

use executor_client::{CgroupMode, CgroupPolicy, Executor, LaunchSpec};

use super::{Bench, eventually, exists};

/// Whether a limit can be tested here; prints it if not.
#[track_caller]
pub(crate) fn enforced(bench: &Bench, controller: &str) -> bool {
    let enforced = bench.launcher.cgroups().enforces(controller);
    if !enforced {
        skip::cannot(&format!("this host has no cgroup controller {controller}"));
    }
    enforced
}

fn limited(bench: &Bench, script: &str, limit: impl FnOnce(&mut CgroupPolicy)) -> LaunchSpec {
    let mut spec = bench.spec("t", script);
    limit(spec.cgroup.as_mut().unwrap());
    spec
}

async fn launch(bench: &Bench, spec: LaunchSpec) -> Executor {
    bench.launcher.launch(&bench.state("t"), spec).await.unwrap().executor
}

/// Cores of a process, as the kernel lists them.
fn cores(pid: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default().trim().to_owned()
}

/// First and last core that this process may use.
fn own_cores() -> (String, String) {
    let all = cores(std::process::id().cast_signed());
    let ends: Vec<&str> = all.split([',', '-']).collect();
    (ends[0].to_owned(), ends[ends.len() - 1].to_owned())
}

#[tokio::test]
async fn the_kernel_is_told_each_limit() {
    let bench = Bench::new();
    for controller in ["memory", "cpu", "pids", "cpuset"] {
        if !enforced(&bench, controller) {
            return;
        }
    }
    let core = own_cores().1;
    let spec = limited(&bench, "exec sleep 1000", |policy| {
        policy.memory_max = Some(64 << 20);
        policy.memory_reservation = Some(32 << 20);
        policy.cpu_shares = Some(512);
        policy.cpu_quota_us = Some(50_000);
        policy.pids_max = Some(77);
        policy.cpus = Some(core.clone());
    });
    let placed = bench.launcher.cgroups().place(spec.cgroup.as_ref().unwrap()).unwrap();
    let executor = launch(&bench, spec).await;
    let (memory, reservation) = ((64 << 20).to_string(), (32 << 20).to_string());
    let v2 = bench.launcher.cgroups().mode() == CgroupMode::V2;
    let expected: &[(&str, &str, &str)] = match v2 {
        true => &[
            ("", "memory.max", &memory),
            ("", "memory.low", &reservation),
            ("", "memory.oom.group", "1"),
            ("", "cpu.weight", "20"),
            ("", "cpu.max", "50000 100000"),
            ("", "pids.max", "77"),
            ("", "cpuset.cpus.effective", &core),
        ],
        false => &[
            ("memory", "memory.limit_in_bytes", &memory),
            ("memory", "memory.soft_limit_in_bytes", &reservation),
            ("cpu", "cpu.shares", "512"),
            ("cpu", "cpu.cfs_quota_us", "50000"),
            ("pids", "pids.max", "77"),
            ("cpuset", "cpuset.cpus", &core),
        ],
    };
    for (controller, file, value) in expected {
        let beside = placed.v1.iter().find(|v1| v1.controller == *controller).map(|v1| v1.path.clone());
        let dir = PathBuf::from(String::from_utf8(beside.unwrap_or_else(|| placed.unified.clone())).unwrap());
        assert_eq!(std::fs::read_to_string(dir.join(file)).unwrap().trim(), *value, "{}", dir.join(file).display());
        let inside = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap();
        assert!(inside.lines().any(|line| line == executor.pid().to_string()), "{}: {inside}", dir.display());
    }
    executor.destroy().await.unwrap();
}

#[tokio::test]
async fn a_tree_has_no_more_processes_than_it_may() {
    let bench = Bench::new();
    if !enforced(&bench, "pids") {
        return;
    }
    let spec = limited(&bench, "for i in 1 2 3 4 5 6 7 8 9; do sleep 1000 & echo $i; done", |policy| {
        policy.pids_max = Some(5)
    });
    let executor = launch(&bench, spec).await;
    let result = executor.wait().await.unwrap();
    assert_ne!(result.exit_code, 0, "the shell cannot fork: {result:?}");
    assert_eq!(bench.output("t.stdout"), "1\n2\n3\n4\n", "itself and four more");
    executor.destroy().await.unwrap();
}

#[tokio::test]
async fn a_quota_is_kept_and_its_cost_is_counted() {
    let bench = Bench::new();
    if !enforced(&bench, "cpu") {
        return;
    }
    let spec = limited(&bench, "while :; do :; done", |policy| policy.cpu_quota_us = Some(5_000));
    let executor = launch(&bench, spec).await;
    // It wants all the time and gets a twentieth of it. Before the executor has brought it into the limit it may have
    // run for a while.
    let throttled = async || {
        assert!(executor.ended().is_none());
        let stats = executor.stats().await.unwrap();
        if stats.throttled_periods >= 5 && stats.throttled_ns > stats.user_ns { Ok(()) } else { Err(stats) }
    };
    testkit::poll("five periods and most of the time in which it is throttled", throttled).await;
    executor.destroy().await.unwrap();
}

#[tokio::test]
async fn cores_hold_for_what_runs_and_what_comes() {
    let bench = Bench::new();
    if !enforced(&bench, "cpuset") {
        return;
    }
    let (first, last) = own_cores();
    let spec = limited(&bench, "sleep 1000 & exec sleep 1000", |policy| policy.cpus = Some(first.clone()));
    let name = spec.cgroup.as_ref().unwrap().name.clone();
    let executor = launch(&bench, spec).await;
    let tree = || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", executor.pid())).unwrap_or_default();
    eventually("it has its child", || !tree().trim().is_empty()).await;
    let child: i32 = tree().trim().parse().unwrap();
    eventually("both are on the first core", || cores(executor.pid()) == first && cores(child) == first).await;
    // Bound to another core while it runs.
    assert!(bench.launcher.cgroups().confine(&name, &last).unwrap());
    assert_eq!((cores(executor.pid()), cores(child)), (last.clone(), last));
    executor.destroy().await.unwrap();
    assert!(!bench.launcher.cgroups().confine(&name, &first).unwrap(), "nobody is there any more");
    bench.launcher.cgroups().sweep_cores();
}

#[tokio::test]
async fn memory_is_counted_with_its_cache_and_its_peak() {
    let bench = Bench::new();
    if !enforced(&bench, "memory") {
        return;
    }
    let script =
        "head -c 30000000 /dev/zero > data; head -c 20000000 /dev/zero | tail -c 20000000 | wc -c; exec sleep 1000";
    // With a limit of processes the workload enters everything before its first instruction, so that all of it counts.
    let limits = |policy: &mut CgroupPolicy| (policy.memory_max, policy.pids_max) = (Some(200 << 20), Some(100));
    let executor = launch(&bench, limited(&bench, script, limits)).await;
    eventually("its work is done", || bench.output("t.stdout").contains("20000000")).await;
    // The writer may still be exiting, with its memory.
    let alone = async || Some(executor.stats().await.unwrap()).filter(|stats| stats.pids.len() <= 1);
    let stats = testkit::poll("the end of what has written it", alone).await;
    let (usage, peak, cache) = (stats.memory_usage.unwrap(), stats.memory_peak.unwrap(), stats.memory_cache.unwrap());
    assert!(cache >= 29_000_000, "the file is in the cache: {stats:?}");
    assert!(usage >= cache && peak >= usage + 10_000_000 && peak <= 200 << 20, "{stats:?}");
    executor.destroy().await.unwrap();
}

/// A workload with rights may divide its cgroup; the parts are within its limits and go with it.
#[tokio::test]
async fn groups_that_a_workload_makes_are_its_own() {
    let bench = Bench::new();
    let host = bench.launcher.cgroups();
    if !enforced(&bench, "memory") {
        return;
    }
    if host.mode() != CgroupMode::V2 {
        skip::elsewhere(
            &format!("the hierarchies are {}: a workload's groups need version 2 alone", host.mode().name()),
            "interop cgroup-v2",
        );
        return;
    }
    let place = |spec: &LaunchSpec| {
        PathBuf::from(String::from_utf8(host.place(spec.cgroup.as_ref().unwrap()).unwrap().unified).unwrap())
    };
    let divide = "mkdir -p $G/a/b $G/c && echo $$ > $G/a/b/cgroup.procs; (echo $$; exec sleep 1000) & \
                  sh -c 'echo $$ > $G/c/cgroup.procs; exec setsid sleep 1000' & ";
    let with_group = |mut spec: LaunchSpec| {
        let group = place(&spec);
        spec.env.push(("G".into(), group.clone().into()));
        (spec, group)
    };
    let members = |dir: &Path| std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines().count();

    let (spec, group) =
        with_group(limited(&bench, &format!("{divide} exec sleep 1000"), |policy| policy.memory_max = Some(64 << 20)));
    let executor = launch(&bench, spec).await;
    eventually("all are where they belong", || members(&group.join("a/b")) == 2 && members(&group.join("c")) == 1)
        .await;
    let stats = executor.stats().await.unwrap();
    assert_eq!(stats.pids.len(), 3, "{stats:?}");
    assert!(stats.memory_usage.unwrap() > 0, "{stats:?}");
    executor.destroy().await.unwrap();
    assert!(!group.exists() && !stats.pids.iter().any(|p| exists(p.pid)), "{stats:?}");

    // An out-of-memory kill in a child cgroup ends the whole workload.
    let (spec, group) = with_group(limited(
        &bench,
        &format!("{divide} head -c 200000000 /dev/zero | tail -n 1 >/dev/null; sleep 1000"),
        |policy| policy.memory_max = Some(16 << 20),
    ));
    let executor = launch(&bench, spec).await;
    let result = executor.wait().await.unwrap();
    assert!(result.oom_killed && result.exit_code == 137, "{result:?}");
    executor.destroy().await.unwrap();
    assert!(!group.exists());
}
