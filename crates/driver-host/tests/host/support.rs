//! A host in a directory of its own, and what tests ask of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use driver_host::{Driver, DriverFingerprint, DriverHost, Ending, HostOptions, PluginSpec, TaskConfig, Topology};
use serde_json::Value;

/// Far beyond what anything here takes; reaching it is a failure.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program with all the fakes; cargo builds examples together with the tests.
pub(crate) fn fake_plugin() -> PathBuf {
    let test = std::env::current_exe().expect("own path");
    let path = test.parent().and_then(Path::parent).expect("target directory").join("examples/fake_plugin");
    assert!(path.exists(), "{path:?} is missing: run `cargo test -p driver-host`, or build with --examples");
    path
}

pub(crate) fn fake(name: &str, args: &[&str]) -> PluginSpec {
    PluginSpec {
        name: name.into(),
        command: fake_plugin(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..PluginSpec::default()
    }
}

/// A temporary directory; the processes of a test that failed are ended with it.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // Every plugin, and whatever it starts, has this directory in its environment.
        for pid in with_environment(&self.path().to_string_lossy()) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

/// Processes whose environment holds a text.
pub(crate) fn with_environment(text: &str) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let names_it =
        |pid: &u32| std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| String::from_utf8_lossy(&environ).contains(text));
    pids.filter(names_it).collect()
}

pub(crate) struct Fixture {
    pub(crate) dir: Dir,
    pub(crate) host: DriverHost,
}

pub(crate) fn options(dir: &Path, plugins: Vec<PluginSpec>) -> HostOptions {
    let mut options = HostOptions::new(plugins, dir.join("s"), dir.join("state"));
    options.agent.topology = Topology::uniform(2, 1000);
    options.timing.relaunch_first = Duration::from_millis(100);
    options
}

impl Fixture {
    pub(crate) fn new(plugins: Vec<PluginSpec>) -> Self {
        Self::with(plugins, |_| {})
    }

    pub(crate) fn with(plugins: Vec<PluginSpec>, tune: impl FnOnce(&mut HostOptions)) -> Self {
        let dir = Dir(tempfile::tempdir().expect("temporary directory"));
        let mut options = options(dir.path(), plugins);
        tune(&mut options);
        let host = DriverHost::start(options).expect("host starts");
        Self { dir, host }
    }

    pub(crate) async fn mock() -> (Self, Driver) {
        let fixture = Self::new(vec![fake("mock", &["mock"])]);
        let driver = fixture.driver("mock").await;
        (fixture, driver)
    }

    /// A driver that takes calls and has sent a fingerprint.
    pub(crate) async fn driver(&self, name: &str) -> Driver {
        self.fingerprint(name, |f| f.healthy).await;
        self.host.driver(name).expect("a driver with a fingerprint exists")
    }

    /// The first fingerprint that is as wanted.
    pub(crate) async fn fingerprint(&self, name: &str, wanted: impl Fn(&DriverFingerprint) -> bool) -> DriverFingerprint {
        let mut seen = self.host.fingerprints();
        let found = seen.wait_for(|all| all.get(name).is_some_and(&wanted));
        let found = tokio::time::timeout(PATIENCE, found).await;
        match found {
            Ok(all) => all.expect("host lives")[name].clone(),
            Err(_) => panic!("never as wanted: {:?}", self.host.fingerprints().borrow()),
        }
    }

    /// Ends the host and checks that none of its processes is left.
    pub(crate) async fn finish(self) {
        let began = Instant::now();
        self.host.shutdown(Ending::Stop).await;
        assert!(began.elapsed() < Duration::from_secs(8), "shutdown took {:?}", began.elapsed());
        nothing_left(self.dir.path());
    }
}

/// Every fake leaves a note with its process id.
pub(crate) fn launched(dir: &Path) -> Vec<u32> {
    let entries = std::fs::read_dir(dir.join("s")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("pid.")?.parse().ok()).collect()
}

pub(crate) fn alive(pid: u32) -> bool {
    // The program of a process; a zombie and a stranger have none that is ours.
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.to_string_lossy().contains("fake_plugin"))
}

pub(crate) fn nothing_left(dir: &Path) {
    let left: Vec<u32> = launched(dir).into_iter().filter(|pid| alive(*pid)).collect();
    assert!(left.is_empty(), "processes {left:?} are left");
}

pub(crate) fn signal(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("pid");
    rustix::process::kill_process(pid, signal).expect("signal is sent");
}

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A task for the mock driver.
pub(crate) fn task(driver: &Driver, config: &Value) -> TaskConfig {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let bytes = driver.encode_task_config(config, &Default::default()).expect("the configuration fits");
    TaskConfig {
        id: format!("alloc/task/{number:08x}"),
        name: "task".into(),
        alloc_id: "alloc".into(),
        msgpack_driver_config: bytes,
        ..TaskConfig::default()
    }
}

/// Anything must end some time.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

/// Until a condition holds that nothing announces.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what}: never");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
