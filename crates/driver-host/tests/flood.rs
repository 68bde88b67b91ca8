//! A plugin with endless output. In a process of its own, because the test measures memory.

use std::time::{Duration, Instant};

use driver_host::{DriverHost, Ending, HostOptions, PluginSpec};

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("line");
    line.split_whitespace().nth(1).expect("number").parse().expect("number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_gibibytes_of_output_cost_the_host_a_bounded_amount_of_memory() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let command = testkit::beside_the_tests("fake_plugin");
    let plugin = PluginSpec { name: "mock".into(), command, args: vec!["flood".into()], ..PluginSpec::default() };
    let host = DriverHost::start(HostOptions::new(vec![plugin], dir.path().join("s"), dir.path().join("state")))
        .expect("starts");
    let driver = host.wait_driver("mock", testkit::PATIENCE).await.expect("comes up");
    let before = resident();
    let mut most = before;
    let done = ["stdout.done", "stderr.done"].map(|name| dir.path().join("s").join(name));
    let began = Instant::now();
    while !done.iter().all(|path| path.exists()) {
        assert!(began.elapsed() < Duration::from_secs(300), "4 GiB are never read: the plugin is blocked");
        most = most.max(resident());
        // Calls are answered meanwhile.
        testkit::soon(driver.inspect_task("nobody")).await.expect_err("unknown");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(most - before < 32 << 10, "{before} KiB became {most} KiB");
    assert_eq!(driver.generation(), 1);
    host.shutdown(Ending::Stop).await;
}
