//! Figures, on demand: `cargo test -p driver-host --release -- --ignored --nocapture figures`.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::{Fixture, signal, soon, task};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "prints figures, checks nothing"]
async fn figures() {
    let (fixture, driver) = Fixture::mock().await;
    let mut out = std::io::stderr();
    let first = task(&driver, &json!({"run_for": "1h"}));
    driver.start_task(first.clone()).await.expect("starts");
    let mut spent: Vec<Duration> = Vec::new();
    for _ in 0..5000 {
        let began = Instant::now();
        driver.inspect_task(&first.id).await.expect("inspected");
        spent.push(began.elapsed());
    }
    spent.sort();
    let _ = writeln!(out, "unary call: p50 {:?}, p99 {:?}", spent[2500], spent[4950]);

    let mut handles = Vec::new();
    let began = Instant::now();
    for _ in 0..500 {
        let config = task(&driver, &json!({"run_for": "1h"}));
        handles.push(driver.start_task(config).await.expect("starts").handle);
    }
    let _ = writeln!(out, "500 starts one after the other: {:?}", began.elapsed());
    let pid = fixture.fingerprint("mock", |f| f.healthy).await.pid.expect("runs");
    let pss = |pid| {
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        rollup.lines().find(|line| line.starts_with("Pss:")).unwrap_or_default().to_owned()
    };
    let _ = writeln!(out, "plugin with 500 tasks: {}", pss(pid));
    let began = Instant::now();
    signal(pid, rustix::process::Signal::KILL);
    soon(driver.wait_ready(1)).await;
    let up = began.elapsed();
    let recoveries = handles.into_iter().map(|handle| {
        let driver = driver.clone();
        tokio::spawn(async move { driver.recover_task(handle).await })
    });
    for recovery in recoveries.collect::<Vec<_>>() {
        recovery.await.expect("joined").expect("recovers");
    }
    let _ = writeln!(out, "after SIGKILL: plugin back in {up:?}, 500 tasks recovered in {:?}", began.elapsed());
    let pid = fixture.fingerprint("mock", |f| f.healthy && f.generation == 2).await.pid.expect("runs");
    let _ = writeln!(out, "plugin again: {}", pss(pid));
    fixture.finish().await;
}
