//! Figures, for `cargo xtask bench drivers`, which reads the lines.

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
    let percent = |now: u64, before: u64| {
        (now - before) as f64 / rustix::param::clock_ticks_per_second() as f64 / seconds * 100.0
    };
    (percent(ticks("self"), before[0]), percent(ticks(&plugin), before[1]))
}

/// Proportional memory of a process in MiB.
fn pss(pid: u32) -> f64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let kib = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok());
    kib.unwrap_or_default() / 1024.0
}

#[allow(clippy::print_stdout, reason = "this is what it is for")]
fn figure(what: &str, unit: &str, value: f64) {
    println!("figure {what} | {unit} | {value}");
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
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    figure("plugin without tasks: PSS", "MiB", pss(pid));
    let first = start(&driver, 1).await;
    let mut spent: Vec<Duration> = Vec::new();
    for _ in 0..5000 {
        let began = Instant::now();
        driver.inspect_task(&id(&first[0])).await.expect("inspected");
        spent.push(began.elapsed());
    }
    spent.sort();
    figure("unary call: p50", "us", spent[2500].as_secs_f64() * 1e6);
    figure("unary call: p99", "us", spent[4950].as_secs_f64() * 1e6);

    let began = Instant::now();
    let mut handles = start(&driver, 500).await;
    figure("500 starts one after the other", "ms", began.elapsed().as_secs_f64() * 1e3);
    figure("plugin with 500 tasks: PSS", "MiB", pss(pid));
    let began = Instant::now();
    signal(pid, rustix::process::Signal::KILL);
    soon(driver.wait_ready(1)).await;
    figure("plugin back after SIGKILL", "ms", began.elapsed().as_secs_f64() * 1e3);
    let recoveries = handles.iter().cloned().map(|handle| {
        let driver = driver.clone();
        tokio::spawn(async move { driver.recover_task(handle).await })
    });
    for recovery in recoveries.collect::<Vec<_>>() {
        recovery.await.expect("joined").expect("recovers");
    }
    figure("500 tasks recovered after SIGKILL", "ms", began.elapsed().as_secs_f64() * 1e3);
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
    figure("1,000 tasks, fingerprint and waits: host", "%", host);
    figure("1,000 tasks, fingerprint and waits: plugin", "%", plugin);
    for (every, what) in [(60, "minute"), (1, "second")] {
        let stats: Vec<_> = handles
            .iter()
            .map(|handle| {
                let mut stream = driver.stats(&id(handle), Duration::from_secs(every)).expect("opens");
                tokio::spawn(async move { while let Some(Ok(_)) = stream.next().await {} })
            })
            .collect();
        // The first samples come at once.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let (host, plugin) = load(pid).await;
        figure(&format!("… and a sample of each every {what}: host"), "%", host);
        figure(&format!("… and a sample of each every {what}: plugin"), "%", plugin);
        figure(&format!("plugin with 1,000 tasks, sampled every {what}: PSS"), "MiB", pss(pid));
        stats.iter().for_each(tokio::task::JoinHandle::abort);
    }
    waits.iter().for_each(tokio::task::JoinHandle::abort);
    fixture.finish().await;
}
