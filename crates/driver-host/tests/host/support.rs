//! A host in a directory of its own, and what tests ask of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use driver_host::{Driver, DriverFingerprint, DriverHost, Ending, HostOptions, PluginSpec, TaskConfig, Topology};
use serde_json::Value;
pub(crate) use testkit::{Dir, eventually, signal, soon};

/// The program with all the fakes.
pub(crate) fn fake_plugin() -> PathBuf {
    testkit::beside_the_tests("fake_plugin")
}

pub(crate) fn fake(name: &str, args: &[&str]) -> PluginSpec {
    PluginSpec {
        name: name.into(),
        command: fake_plugin(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..PluginSpec::default()
    }
}

/// Processes whose environment holds a text.
pub(crate) fn with_environment(text: &str) -> Vec<i32> {
    testkit::pids().filter(|pid| testkit::environment(*pid).iter().any(|variable| variable.contains(text))).collect()
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
        let dir = Dir::new("host");
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
    pub(crate) async fn fingerprint(
        &self,
        name: &str,
        wanted: impl Fn(&DriverFingerprint) -> bool,
    ) -> DriverFingerprint {
        let mut seen = self.host.fingerprints();
        let found = seen.wait_for(|all| all.get(name).is_some_and(&wanted));
        let found = tokio::time::timeout(testkit::PATIENCE, found).await;
        match found {
            Ok(all) => all.expect("host lives")[name].clone(),
            Err(_) => panic!("never as wanted: {:?}", self.host.fingerprints().borrow()),
        }
    }

    /// Ends the host and checks that none of its processes is left.
    pub(crate) async fn finish(self) {
        let began = Instant::now();
        self.host.shutdown(Ending::Stop).await;
        assert!(began.elapsed() < Duration::from_secs(30), "shutdown took {:?}", began.elapsed());
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
