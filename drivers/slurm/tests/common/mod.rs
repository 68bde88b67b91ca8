//! A Slurm that is a directory and processes, and what tests ask of its managers: each `Driver` is one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::{
    AgentConfig, Ensure, Ensured, InstanceState, Observation, RemoteDriver as _, RemoteError, RemoteHandle, StopTask,
};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use slurm::Driver;
use tempfile::TempDir;

pub(crate) struct World {
    pub(crate) dir: TempDir,
}

impl World {
    pub(crate) fn new() -> World {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("slurm")).expect("made");
        World { dir }
    }

    pub(crate) fn slurm(&self, name: &str) -> PathBuf {
        self.dir.path().join("slurm").join(name)
    }

    pub(crate) fn say(&self, name: &str, text: &str) {
        std::fs::write(self.slurm(name), text).expect("written");
    }

    pub(crate) fn ensure(&self, key: &str, epoch: u64, script: &str) -> Ensure {
        let options = json!({"command": "/bin/sh", "args": ["-c", script]});
        let mut request = Ensure { key: key.into(), epoch, owner: "o".into(), slot: "s".into(), ..Ensure::default() };
        request.task.name = "t".into();
        request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
        request
    }

    /// As many, from `k0` on.
    pub(crate) fn ensures(&self, count: usize, script: &str) -> Vec<Ensure> {
        (0..count).map(|n| self.ensure(&format!("k{n}"), 1, script)).collect()
    }

    /// One that runs, until something ends it.
    pub(crate) async fn runs(&self, driver: &Driver, key: &str) -> RemoteHandle {
        let made = driver.ensure(self.ensure(key, 1, "exec sleep 600")).await.expect("made");
        becomes(driver, &made.handle, InstanceState::Running).await;
        made.handle
    }

    /// Creates all at the same time. The first four calls of `sbatch` go on when all others wait for their turn: those
    /// of one kind are an array, if arrays are made.
    pub(crate) async fn gathered(
        &self,
        driver: &Arc<Driver>,
        requests: Vec<Ensure>,
    ) -> Vec<Result<Ensured, RemoteError>> {
        let gates: Vec<_> = requests.iter().map(|request| format!("runs/instances/{}/gate.sh", request.key)).collect();
        let gates: Vec<PathBuf> = gates.iter().map(|gate| self.dir.path().join(gate)).collect();
        let begun = || self.submissions().filter(|call| call == "begins").count();
        let before = begun();
        self.say("sbatch.gate", "");
        let all = together(driver, requests);
        let opens = async {
            testkit::eventually("all before their submission", || {
                begun() == before + 4 && gates.iter().all(|gate| gate.exists())
            })
            .await;
            // The last one has only to hear that its files are written.
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(begun(), before + 4, "four calls at a time");
            std::fs::remove_file(self.slurm("sbatch.gate")).expect("opened");
        };
        tokio::join!(all, opens).0
    }

    /// Begins and ends of calls of `sbatch`.
    pub(crate) fn submissions(&self) -> impl Iterator<Item = String> + use<> {
        let calls = std::fs::read_to_string(self.slurm("sbatch.calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect::<Vec<_>>().into_iter()
    }

    /// The jobs that were ever taken.
    pub(crate) fn jobs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.slurm("jobs")).into_iter().flatten().flatten();
        let jobs = entries.filter(|entry| entry.path().join("name").exists());
        jobs.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// How many of them were cancelled.
    pub(crate) fn cancelled(&self) -> usize {
        self.jobs().iter().filter(|job| self.slurm("jobs").join(job).join("cancelled").exists()).count()
    }

    /// Kills what runs of a job.
    pub(crate) fn kill(&self, job: &str) {
        let pid = std::fs::read_to_string(self.slurm("jobs").join(job).join("pid")).expect("a pid");
        let pid = Pid::from_raw(pid.trim().parse().expect("a number")).expect("a pid");
        kill_process_group(pid, Signal::KILL).expect("killed");
    }

    /// The job is killed, and the controller has forgotten it at once.
    pub(crate) fn forget(&self, job: &str) {
        self.kill(job);
        let dir = self.slurm("jobs").join(job);
        testkit::until("its end", || dir.join("code").exists());
        std::fs::remove_dir_all(dir).expect("forgotten");
    }
}

/// Whatever a failing test leaves running ends with it.
impl Drop for World {
    fn drop(&mut self) {
        for job in std::fs::read_dir(self.slurm("jobs")).into_iter().flatten().flatten() {
            let pid = std::fs::read_to_string(job.path().join("pid")).unwrap_or_default();
            if let Some(pid) = pid.trim().parse().ok().and_then(Pid::from_raw)
                && !job.path().join("code").exists()
            {
                let _ = kill_process_group(pid, Signal::KILL);
            }
        }
    }
}

pub(crate) async fn configured(config: &Value) -> Arc<Driver> {
    let driver = Driver::new();
    let config = Config::new(rmp_serde::to_vec(config).expect("bytes"));
    driver.set_config(config, Some(AgentConfig::default())).await.expect("configured");
    Arc::new(driver)
}

pub(crate) async fn look(driver: &Driver, handle: &RemoteHandle) -> Observation {
    driver.observe(std::slice::from_ref(handle)).await.expect("observed").remove(0)
}

pub(crate) async fn becomes(driver: &Driver, handle: &RemoteHandle, state: InstanceState) -> Observation {
    testkit::poll("the state", async || {
        let seen = look(driver, handle).await;
        (seen.state == state).then_some(seen)
    })
    .await
}

/// Creates all at the same time.
pub(crate) async fn together(driver: &Arc<Driver>, requests: Vec<Ensure>) -> Vec<Result<Ensured, RemoteError>> {
    let create = |request| {
        let driver = driver.clone();
        async move { driver.ensure(request).await }
    };
    let all: Vec<_> = requests.into_iter().map(|request| tokio::spawn(create(request))).collect();
    let mut made = Vec::with_capacity(all.len());
    for one in all {
        made.push(one.await.expect("ran"));
    }
    made
}

/// The same, and none may fail.
pub(crate) async fn all_made(driver: &Arc<Driver>, requests: Vec<Ensure>) -> Vec<RemoteHandle> {
    all_well(together(driver, requests).await)
}

/// What was made, of which nothing may have failed.
pub(crate) fn all_well(made: Vec<Result<Ensured, RemoteError>>) -> Vec<RemoteHandle> {
    made.into_iter().map(|made| made.expect("made").handle).collect()
}

pub(crate) fn stop() -> StopTask {
    StopTask { signal: String::new(), timeout: Duration::from_secs(5) }
}
