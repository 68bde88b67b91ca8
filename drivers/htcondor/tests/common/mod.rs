//! An HTCondor that is a directory and processes (`examples/fake_condor`), and what tests ask of its managers: each
//! `Driver` is one.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use driver_sdk::config::Config;
use driver_sdk::{
    AgentConfig, Ensure, Fingerprint, InstanceState, LogStream, LogsQuery, Observation, RemoteDriver as _, RemoteError,
    RemoteHandle, StopTask,
};
use htcondor::Driver;
use serde_json::{Value, json};

/// The commands of HTCondor that the driver runs.
const COMMANDS: [&str; 6] =
    ["condor_submit", "condor_q", "condor_qedit", "condor_release", "condor_rm", "condor_version"];

/// A directory with commands, a pool and run directories. What is left in it ends with it.
pub(crate) struct World {
    pub(crate) dir: testkit::Dir,
}

impl World {
    pub(crate) fn new() -> World {
        let world = World { dir: testkit::Dir::for_all("condor") };
        for (name, mode) in [("condor", 0o777), ("runs", 0o755), ("bin", 0o755)] {
            fs::create_dir(world.dir.at(name)).expect("made");
            fs::set_permissions(world.dir.at(name), Permissions::from_mode(mode)).expect("its mode");
        }
        for name in ["lock", "calls"] {
            world.say(name, "");
            fs::set_permissions(world.condor(name), Permissions::from_mode(0o666)).expect("its mode");
        }
        // Where it was built, the user of the jobs may be unable to enter.
        let fake = world.dir.at("bin").join("fake_condor");
        testkit::program(&fake, &fs::read(testkit::beside_the_tests("fake_condor")).expect("read"));
        for name in COMMANDS {
            let text = format!("#!/bin/sh\nexec '{}' {name} \"$@\"\n", fake.display());
            testkit::program(&world.dir.at("bin").join(name), &text);
        }
        world
    }

    /// A file of the pool.
    pub(crate) fn condor(&self, name: &str) -> PathBuf {
        self.dir.at("condor").join(name)
    }

    pub(crate) fn say(&self, name: &str, text: &str) {
        fs::write(self.condor(name), text).expect("written");
    }

    pub(crate) fn unsay(&self, name: &str) {
        fs::remove_file(self.condor(name)).expect("removed");
    }

    /// A file of a run directory.
    pub(crate) fn file(&self, key: &str, name: &str) -> PathBuf {
        self.dir.at("runs/instances").join(key).join(name)
    }

    pub(crate) fn read(&self, key: &str, name: &str) -> String {
        fs::read_to_string(self.file(key, name)).unwrap_or_default()
    }

    pub(crate) fn config(&self) -> Value {
        let mut config = json!({
            "base": self.dir.at("runs"), "conf": self.dir.at("condor"), "bin_dir": self.dir.at("bin"),
            "schedd": "submit-1", "poll_interval": "500ms",
        });
        if rustix::process::geteuid().is_root() {
            config["user"] = "nobody".into();
        }
        config
    }

    pub(crate) async fn manager(&self) -> Arc<Driver> {
        configured(&self.config()).await
    }

    pub(crate) async fn manager_with(&self, more: Value) -> Arc<Driver> {
        let mut config = self.config();
        config.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        configured(&config).await
    }

    pub(crate) fn ensure(&self, key: &str, epoch: u64, script: &str) -> Ensure {
        let options = json!({"command": "/bin/sh", "args": ["-c", script]});
        let mut request = Ensure { key: key.into(), epoch, owner: "o".into(), slot: "s".into(), ..Ensure::default() };
        request.task.name = "t".into();
        request.task.msgpack_driver_config = rmp_serde::to_vec(&options).expect("bytes");
        request
    }

    /// One that runs, until something ends it; and its job.
    pub(crate) async fn runs(&self, driver: &Driver, key: &str) -> (RemoteHandle, u64) {
        self.runs_script(driver, key, "echo started; exec sleep 600").await
    }

    /// The same; the script's first line of output is awaited.
    pub(crate) async fn runs_script(&self, driver: &Driver, key: &str, script: &str) -> (RemoteHandle, u64) {
        let made = driver.ensure(self.ensure(key, 1, script)).await.expect("made");
        becomes(driver, &made.handle, InstanceState::Running).await;
        testkit::eventually("its first line", || self.read(key, "out").ends_with('\n')).await;
        (made.handle, self.begun(key).remove(0))
    }

    /// All ads of the queue.
    pub(crate) fn ads(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.condor("jobs.json")).unwrap_or_else(|_| "{\"jobs\": {}}".to_owned());
        let jobs: Value = serde_json::from_str(&text).expect("a queue");
        jobs["jobs"].as_object().expect("jobs").values().map(|job| job["ad"].clone()).collect()
    }

    pub(crate) fn ad(&self, job: u64) -> Value {
        self.ads().into_iter().find(|ad| ad["ClusterId"] == job).unwrap_or_default()
    }

    /// Numbers of the jobs of a key that have begun.
    pub(crate) fn begun(&self, key: &str) -> Vec<u64> {
        self.of(key, "begun").iter().filter_map(|ad| ad["ClusterId"].as_u64()).collect()
    }

    /// The ads of a key in this state, without those that were removed.
    pub(crate) fn of(&self, key: &str, state: &str) -> Vec<Value> {
        let is = |ad: &Value| ad["DroverKey"] == key && ad["DroverState"] == state;
        self.ads().into_iter().filter(is).collect()
    }

    /// The lines that starts of a key's task have left.
    pub(crate) fn starts(&self, key: &str) -> usize {
        self.read(key, "out").lines().filter(|line| *line == "started").count()
    }

    /// How often a command was called.
    pub(crate) fn calls(&self, command: &str) -> usize {
        let calls = fs::read_to_string(self.condor("calls")).expect("calls");
        calls.lines().filter(|line| command.is_empty() || *line == command).count()
    }

    /// A person releases whatever is on hold.
    pub(crate) fn release_all(&self) {
        let mut command = Command::new(testkit::beside_the_tests("fake_condor"));
        command.args(["condor_release", "-totals", "-constraint", "DroverKey =!= undefined"]);
        let output = command.env("CONDOR_CONFIG", self.dir.at("condor")).output().expect("run");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Something happens to a job.
    pub(crate) fn happens(&self, what: &str, job: u64) {
        let mut command = Command::new(testkit::beside_the_tests("fake_condor"));
        command.args([what, &job.to_string()]).env("CONDOR_CONFIG", self.dir.at("condor"));
        let output = command.output().expect("run");
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// The main process of a job that runs, which the queue knows a moment after its start.
    pub(crate) fn pid(&self, job: u64) -> Option<i32> {
        let text = fs::read_to_string(self.condor("jobs.json")).expect("a queue");
        let jobs: Value = serde_json::from_str(&text).expect("a queue");
        jobs["jobs"][job.to_string()]["pid"].as_i64().and_then(|pid| pid.try_into().ok())
    }

    /// Its processes are killed, whatever the queue knows of it.
    pub(crate) fn happens_to_processes(&self, job: u64) {
        for pid in self.processes(job) {
            testkit::try_signal(pid, rustix::process::Signal::KILL).expect("killed");
        }
    }

    /// Processes of a job.
    pub(crate) fn processes(&self, job: u64) -> Vec<i32> {
        let mark = format!("FAKE_JOB={}/{job}.0", self.dir.at("condor").display());
        testkit::pids().filter(|pid| testkit::environment(*pid).contains(&mark)).collect()
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
        if seen.state == state { Ok(seen) } else { Err((seen.state, seen.reason)) }
    })
    .await
}

/// The output of an instance.
pub(crate) async fn output(driver: &Driver, handle: &RemoteHandle, stream: LogStream) -> Result<String, RemoteError> {
    let (sink, mut chunks) = tokio::sync::mpsc::channel(100);
    let query = LogsQuery { stream, offset: 0, follow: false, from_end: false };
    driver.logs(handle, query, sink).await?;
    let mut text = Vec::new();
    while let Some(chunk) = chunks.recv().await {
        text.extend(chunk.data);
    }
    Ok(String::from_utf8(text).expect("text"))
}

pub(crate) async fn fingerprint(driver: &Driver) -> Fingerprint {
    driver.fingerprint().await
}

pub(crate) fn stop() -> StopTask {
    StopTask { signal: String::new(), timeout: Duration::from_secs(5) }
}
