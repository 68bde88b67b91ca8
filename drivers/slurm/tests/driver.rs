//! The remote driver trait with a Slurm that is a directory and processes; each `Driver` is one manager.

use std::path::PathBuf;
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::{
    AgentConfig, Ensure, Finding, Health, InstanceState, Observation, RemoteDriver as _, RemoteError, RemoteHandle,
    StopTask, Verdict,
};
use serde_json::json;
use slurm::Driver;
use tempfile::TempDir;

struct World {
    dir: TempDir,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("slurm")).expect("made");
        World { dir }
    }

    fn slurm(&self, name: &str) -> PathBuf {
        self.dir.path().join("slurm").join(name)
    }

    fn say(&self, name: &str, text: &str) {
        std::fs::write(self.slurm(name), text).expect("written");
    }

    fn unsay(&self, name: &str) {
        std::fs::remove_file(self.slurm(name)).expect("removed");
    }

    async fn manager(&self) -> Driver {
        let driver = Driver::new();
        let config = json!({
            "base": self.dir.path().join("runs"), "conf": self.dir.path().join("slurm"),
            "bin_dir": concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake"),
        });
        let config = Config::new(rmp_serde::to_vec(&config).expect("bytes"));
        driver.set_config(config, Some(AgentConfig::default())).await.expect("configured");
        driver
    }

    fn ensure(&self, key: &str, epoch: u64, script: &str) -> Ensure {
        let options = json!({"command": "/bin/sh", "args": ["-c", script]});
        let mut request = Ensure { key: key.into(), epoch, owner: "o".into(), slot: "s".into(), ..Ensure::default() };
        request.task.name = "t".into();
        request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
        request
    }

    /// How many jobs were ever taken.
    fn submissions(&self) -> usize {
        std::fs::read_dir(self.slurm("jobs")).into_iter().flatten().count()
    }
}

/// Whatever a failing test leaves running ends with it.
impl Drop for World {
    fn drop(&mut self) {
        for job in std::fs::read_dir(self.slurm("jobs")).into_iter().flatten().flatten() {
            let pid = std::fs::read_to_string(job.path().join("pid")).unwrap_or_default();
            if let Some(pid) = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw)
                && !job.path().join("code").exists()
            {
                let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

async fn look(driver: &Driver, handle: &RemoteHandle) -> Observation {
    driver.observe(std::slice::from_ref(handle)).await.expect("observed").remove(0)
}

async fn becomes(driver: &Driver, handle: &RemoteHandle, state: InstanceState) -> Observation {
    testkit::poll("the state", async || {
        let seen = look(driver, handle).await;
        (seen.state == state).then_some(seen)
    })
    .await
}

fn stop() -> StopTask {
    StopTask { signal: String::new(), timeout: Duration::from_secs(5) }
}

#[tokio::test]
async fn a_lost_answer_of_sbatch_makes_no_second_instance() {
    let world = World::new();
    let (first, second) = (world.manager().await, world.manager().await);
    let request = world.ensure("k", 1, "echo started; exec sleep 600");
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation");
    world.say("sbatch.takes", "");
    // The controller has taken the job, and does not show it yet.
    world.say("squeue.says", "Unable to contact slurm controller");
    assert!(matches!(first.ensure(request.clone()).await, Err(RemoteError::CouldNotAsk(_))));
    assert!(matches!(
        second.ensure(Ensure { epoch: 2, ..request.clone() }).await,
        Err(RemoteError::CouldNotAsk(_)) | Ok(_)
    ));
    for name in ["sbatch.says", "sbatch.takes", "squeue.says"] {
        world.unsay(name);
    }
    let got = second.ensure(Ensure { epoch: 2, ..request }).await.expect("got");
    becomes(&second, &got.handle, InstanceState::Running).await;
    let out = world.dir.path().join("runs/instances/k/out");
    testkit::until("its line", || std::fs::read_to_string(&out).is_ok_and(|text| text == "started\n"));
    second.stop(&got.handle, 2, stop()).await.expect("stopped");
    second.acknowledge(&got.handle, 2).await.expect("acknowledged");
}

#[tokio::test]
async fn a_purge_after_sigkill_is_an_end_only_when_the_node_is_heard() {
    let world = World::new();
    let driver = world.manager().await;
    let made = driver.ensure(world.ensure("k", 1, "exec sleep 600")).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    world.say("nodes", "mixed*\n");
    let job = std::fs::read_to_string(world.dir.path().join("runs/instances/k/job")).expect("a number");
    // Killed, and forgotten at once.
    let pid = std::fs::read_to_string(world.slurm("jobs").join(&job).join("pid")).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number")).expect("a pid");
    rustix::process::kill_process_group(pid, rustix::process::Signal::KILL).expect("killed");
    let code = world.slurm("jobs").join(&job).join("code");
    testkit::until("its end", || code.exists());
    std::fs::remove_dir_all(world.slurm("jobs").join(&job)).expect("forgotten");
    let seen = look(&driver, &made.handle).await;
    assert_eq!(seen.state, InstanceState::Unknown, "{}", seen.reason);
    world.say("nodes", "idle\n");
    let ended = becomes(&driver, &made.handle, InstanceState::Exited).await;
    assert_eq!((ended.exit.exit_code, ended.exit.signal), (137, 9));
    // Kept, whatever the nodes say later.
    world.say("nodes", "down*\n");
    assert_eq!(look(&world.manager().await, &made.handle).await.state, InstanceState::Exited);
}

#[tokio::test]
async fn what_the_controller_gave_up_has_not_ended_while_something_of_it_runs() {
    let world = World::new();
    let driver = world.manager().await;
    let made = driver.ensure(world.ensure("k", 1, "setsid sleep 600 & wait")).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    let job = std::fs::read_to_string(world.dir.path().join("runs/instances/k/job")).expect("a number");
    // The node is heard again, and has not ended it yet.
    world.say("nodes", "idle\n");
    for state in ["NODE_FAIL", "PENDING", "FAILED"] {
        world.say(&format!("jobs/{job}/state"), state);
        let seen = becomes(&driver, &made.handle, InstanceState::Unknown).await;
        assert!(seen.reason.contains("still runs"), "{state}: {}", seen.reason);
    }
    let pid = std::fs::read_to_string(world.slurm("jobs").join(&job).join("pid")).expect("a pid");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number")).expect("a pid");
    // The child in its own session is the last one.
    rustix::process::kill_process_group(pid, rustix::process::Signal::KILL).expect("killed");
    let ended = becomes(&driver, &made.handle, InstanceState::Exited).await;
    assert_eq!((ended.exit.exit_code, ended.exit.signal), (137, 9));
}

#[tokio::test]
async fn what_ran_at_the_last_look_is_read_again_when_its_directory_has_changed() {
    let world = World::new();
    let (driver, next) = (world.manager().await, world.manager().await);
    let made = driver.ensure(world.ensure("k", 1, "exec sleep 600")).await.expect("made");
    becomes(&driver, &made.handle, InstanceState::Running).await;
    assert_eq!(look(&driver, &made.handle).await.epoch, 1);
    next.ensure(world.ensure("k", 2, "exec sleep 600")).await.expect("got");
    let seen = look(&driver, &made.handle).await;
    assert_eq!((seen.state, seen.epoch), (InstanceState::Running, 2));
    // Its exit result, while the queue still shows a running job.
    let file = |name: &str| world.dir.path().join("runs/instances/k").join(name);
    std::fs::write(file("exit.tmp"), "3 100\n").expect("written");
    std::fs::rename(file("exit.tmp"), file("exit")).expect("moved");
    let ended = look(&driver, &made.handle).await;
    assert_eq!((ended.state, ended.exit.exit_code), (InstanceState::Exited, 3));
}

#[tokio::test]
async fn a_job_is_submitted_from_its_run_directory_and_not_from_the_agents() {
    let world = World::new();
    world.say("hold", "");
    world.manager().await.ensure(world.ensure("k", 1, "true")).await.expect("made");
    let from = std::fs::read_to_string(world.slurm("jobs/1/from")).expect("a directory");
    assert_eq!(from.trim_end(), world.dir.path().join("runs/instances/k").display().to_string());
}

#[tokio::test]
async fn a_job_that_waits_is_adopted_stopped_and_never_starts() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("hold", "");
    let made = driver.ensure(world.ensure("k", 1, "echo started")).await.expect("made");
    assert_eq!(made.observed.state, InstanceState::Creating);
    let next = world.manager().await;
    let (handle, seen) = next.find("k", "o").await.expect("found");
    assert_eq!((seen.state, &handle), (InstanceState::Creating, &made.handle));
    let again = next.ensure(world.ensure("k", 2, "echo started")).await.expect("got");
    assert!(!again.created && world.submissions() == 1);
    let stale = driver.stop(&made.handle, 1, stop()).await;
    assert_eq!(stale, Err(RemoteError::StaleEpoch { given: 1, accepted: 2 }));
    let ended = next.stop(&handle, 2, stop()).await.expect("stopped");
    assert_eq!(ended.state, InstanceState::Exited);
    // The scheduler starts it against the order.
    let gate = world.dir.path().join("runs/instances/k/gate.sh");
    let late = std::process::Command::new("/bin/sh").arg(gate).env("SLURM_JOB_ID", "1").output().expect("run");
    assert_eq!(late.status.code(), Some(79));
    assert!(!world.dir.path().join("runs/instances/k/out").exists());
}

#[tokio::test]
async fn twenty_are_seen_with_one_squeue() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("hold", "");
    let mut handles = Vec::new();
    let requests: Vec<Ensure> = (0..20).map(|n| world.ensure(&format!("k{n}"), 1, "true")).collect();
    let driver = std::sync::Arc::new(driver);
    let made: Vec<_> = requests
        .into_iter()
        .map(|request| {
            let driver = driver.clone();
            tokio::spawn(async move { driver.ensure(request).await })
        })
        .collect();
    for one in made {
        handles.push(one.await.expect("ran").expect("made").handle);
    }
    let calls = || std::fs::read_to_string(world.slurm("squeue.calls")).unwrap_or_default().lines().count();
    let before = calls();
    let seen = driver.observe(&handles).await.expect("observed");
    assert!(seen.iter().all(|s| s.state == InstanceState::Creating), "{seen:?}");
    assert_eq!(calls() - before, 1);
}

#[tokio::test]
async fn what_runs_no_more_is_seen_with_two_squeues_however_many_there_are() {
    let world = World::new();
    let driver = world.manager().await;
    let mut handles = Vec::new();
    for n in 0..5 {
        let made = driver.ensure(world.ensure(&format!("k{n}"), 1, "exec sleep 600")).await.expect("made");
        becomes(&driver, &made.handle, InstanceState::Running).await;
        handles.push(made.handle);
    }
    let calls = || std::fs::read_to_string(world.slurm("squeue.calls")).unwrap_or_default().lines().count();
    let observed = async |state: InstanceState| -> usize {
        let before = calls();
        let seen = driver.observe(&handles).await.expect("observed");
        assert!(seen.iter().all(|s| s.state == state), "{state:?}: {seen:?}");
        calls() - before
    };
    assert_eq!(observed(InstanceState::Running).await, 1);
    world.say("squeue.says", "Unable to contact slurm controller");
    assert_eq!(observed(InstanceState::Unknown).await, 1);
    world.unsay("squeue.says");
    assert_eq!(observed(InstanceState::Running).await, 1);
    for job in 1..=handles.len() {
        world.say(&format!("jobs/{job}/state"), "COMPLETING");
    }
    assert_eq!(observed(InstanceState::Running).await, 2);
}

#[tokio::test]
async fn a_refused_job_leaves_nothing_and_a_full_cluster_is_asked_again() {
    let world = World::new();
    let driver = world.manager().await;
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Invalid qos specification");
    let refused = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(refused, Err(RemoteError::WrongRequest(_))), "{refused:?}");
    assert!(!world.dir.path().join("runs/instances/k").exists());
    world.say("sbatch.says", "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying");
    let full = driver.ensure(world.ensure("k", 1, "true")).await;
    assert!(matches!(full, Err(RemoteError::CouldNotAsk(_))), "{full:?}");
    world.unsay("sbatch.says");
    let made = driver.ensure(world.ensure("k", 1, "exit 3")).await.expect("made");
    assert_eq!(becomes(&driver, &made.handle, InstanceState::Exited).await.exit.exit_code, 3);
}

#[tokio::test]
async fn a_cluster_that_loses_processes_is_told_so() {
    let world = World::new();
    let found = world.manager().await.fingerprint().await;
    assert_eq!((found.health, found.description.as_str()), (Health::Healthy, "Healthy"));
    assert_eq!(found.attributes["driver.slurm.proctrack"], "proctrack/cgroup");
    world.say("proctrack", "proctrack/linuxproc");
    let found = world.manager().await.fingerprint().await;
    assert_eq!(found.health, Health::Healthy);
    assert!(found.description.contains("ProctrackType=proctrack/cgroup"), "{}", found.description);
}

#[tokio::test]
async fn the_doctor_submits_nothing_and_tells_what_tasks_will_lack() {
    let world = World::new();
    let driver = world.manager().await;
    let of = |found: &[Finding], what: &str| found.iter().find(|f| f.what == what).map(|f| f.verdict);
    let found = driver.examine().await;
    assert!(found.iter().all(|f| f.verdict != Verdict::Fail), "{found:?}");
    assert_eq!(of(&found, "process tracking"), Some(Verdict::Pass));
    assert_eq!(world.submissions(), 0);
    world.say("sbatch.says", "sbatch: error: Batch job submission failed: Invalid account or account/partition");
    world.say("proctrack", "proctrack/pgid");
    let found = driver.examine().await;
    assert_eq!(of(&found, "submission"), Some(Verdict::Fail), "{found:?}");
    assert_eq!(of(&found, "process tracking"), Some(Verdict::Warning));
}
