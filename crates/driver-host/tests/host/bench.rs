//! Figures, on demand: `cargo test -p driver-host --release --test host -- --ignored --nocapture figures`.

use std::io::Write;
use std::time::{Duration, Instant};

use driver_host::Driver;
use serde_json::json;

use crate::support::{Fixture, signal, soon, task};

/// Processor time of a process so far, in clock ticks.
fn ticks(pid: &str) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    [11, 12].iter().filter_map(|n| fields.get(*n)?.parse::<u64>().ok()).sum()
}

/// Percent of one core over a while, of the host and of the plugin.
async fn load(pid: u32) -> (f64, f64) {
    const WHILE: Duration = Duration::from_secs(10);
    let plugin = pid.to_string();
    let before = [ticks("self"), ticks(&plugin)];
    let began = Instant::now();
    tokio::time::sleep(WHILE).await;
    let seconds = began.elapsed().as_secs_f64();
    let percent = |now: u64, before: u64| (now - before) as f64 / rustix::param::clock_ticks_per_second() as f64 / seconds * 100.0;
    (percent(ticks("self"), before[0]), percent(ticks(&plugin), before[1]))
}

fn pss(pid: u32) -> String {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap_or_default();
    line.trim_start_matches("Pss:").trim().to_owned()
}

async fn start(driver: &Driver, number: usize) -> Vec<driver_host::TaskHandle> {
    let mut handles = Vec::new();
    for _ in 0..number {
        let config = task(driver, &json!({"run_for": "1h"}));
        handles.push(driver.start_task(config).await.expect("starts").handle);
    }
    handles
}

fn id(handle: &driver_host::TaskHandle) -> String {
    handle.config.as_ref().map(|config| config.id.clone()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "prints figures, checks nothing"]
async fn figures() {
    let (fixture, driver) = Fixture::mock().await;
    let mut out = std::io::stderr();
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let _ = writeln!(out, "plugin without tasks: {} PSS", pss(pid));
    let first = start(&driver, 1).await;
    let mut spent: Vec<Duration> = Vec::new();
    for _ in 0..5000 {
        let began = Instant::now();
        driver.inspect_task(&id(&first[0])).await.expect("inspected");
        spent.push(began.elapsed());
    }
    spent.sort();
    let _ = writeln!(out, "unary call: p50 {:?}, p99 {:?}", spent[2500], spent[4950]);

    let began = Instant::now();
    let mut handles = start(&driver, 500).await;
    let _ = writeln!(out, "500 starts one after the other: {:?}", began.elapsed());
    let _ = writeln!(out, "plugin with 500 tasks: {} PSS", pss(pid));
    let began = Instant::now();
    signal(pid, rustix::process::Signal::KILL);
    soon(driver.wait_ready(1)).await;
    let up = began.elapsed();
    let recoveries = handles.iter().cloned().map(|handle| {
        let driver = driver.clone();
        tokio::spawn(async move { driver.recover_task(handle).await })
    });
    for recovery in recoveries.collect::<Vec<_>>() {
        recovery.await.expect("joined").expect("recovers");
    }
    let _ = writeln!(out, "after SIGKILL: plugin back in {up:?}, 500 tasks recovered in {:?}", began.elapsed());
    let pid = fixture.fingerprint("mock", |f| f.healthy && f.generation == 2).await.pid.expect("runs");

    handles.extend(start(&driver, 500).await);
    let waits: Vec<_> = handles
        .iter()
        .map(|handle| {
            let (driver, id) = (driver.clone(), id(handle));
            tokio::spawn(async move { driver.wait_task(&id).await })
        })
        .collect();
    let (host, plugin) = load(pid).await;
    let _ = writeln!(out, "1,000 tasks, fingerprint and waits: host {host:.1} %, plugin {plugin:.1} % of a core");
    let stats: Vec<_> = handles
        .iter()
        .map(|handle| {
            let mut stream = driver.stats(&id(handle), Duration::from_secs(1)).expect("opens");
            tokio::spawn(async move { while let Some(Ok(_)) = stream.next().await {} })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (host, plugin) = load(pid).await;
    let _ = writeln!(out, "… and a sample of each every second: host {host:.1} %, plugin {plugin:.1} % of a core");
    let _ = writeln!(out, "plugin with 1,000 tasks, 2,000 streams: {} PSS", pss(pid));
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    stats.iter().for_each(tokio::task::JoinHandle::abort);
    fixture.finish().await;
}
