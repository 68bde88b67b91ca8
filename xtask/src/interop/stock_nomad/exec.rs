//! Commands beside a task, through the stock command line: a websocket, the agent's RPC, the plugin's streams.

use anyhow::{Result, ensure};
use serde_json::json;

use super::stock::{Stock, job, script};

pub(super) fn sessions(stock: &mut Stock) -> Result<()> {
    let steered =
        json!({"run_for": "1h", "exec_command": {"exit_code": 4, "stdout_string": "out", "stderr_string": "err"}});
    let alloc = stock.run_until(&job("steered", "service", "mock", &steered), "running")?;
    let done = stock.cli().run(&["alloc", "exec", "-i=false", "-t=false", &alloc, "/anything"], b"")?;
    ensure!(
        done.code == 4 && done.out == "out" && done.err == "err",
        "mock: {} {:?} {:?}",
        done.code,
        done.out,
        done.err
    );
    stock.stop("steered")?;

    let alloc = stock.run_until(&script("shell", "service", "raw_exec", "exec sleep 77010"), "running")?;
    real(stock, &alloc)?;
    // After a restart of the plugin, whose executors have lost their controller.
    stock.kill_plugin("raw_exec")?;
    stock.stats(&alloc, |_| true)?;
    real(stock, &alloc)?;
    stock.stop("shell")
}

/// Real commands in the task's directory.
fn real(stock: &Stock, alloc: &str) -> Result<()> {
    let exec = |terminal: &str, command: &[&str]| -> Vec<String> {
        let head = ["alloc", "exec", "-i=true", terminal, alloc];
        head.iter().chain(command).map(|s| (*s).to_owned()).collect()
    };
    let plain = exec("-t=false", &["/bin/sh", "-c", "echo out; echo err >&2; cat; exit 5"]);
    let plain: Vec<&str> = plain.iter().map(String::as_str).collect();
    let done = stock.cli().run(&plain, b"from-stdin")?;
    ensure!(
        done.code == 5 && done.out == "out\nfrom-stdin" && done.err == "err\n",
        "{} {:?} {:?}",
        done.code,
        done.out,
        done.err
    );
    let flood = exec("-t=false", &["/bin/sh", "-c", "head -c 3000000 /dev/zero"]);
    let flood: Vec<&str> = flood.iter().map(String::as_str).collect();
    let done = stock.cli().run(&flood, b"")?;
    ensure!(
        done.code == 0 && done.out.len() == 3_000_000,
        "{} and {} bytes: {:?}",
        done.code,
        done.out.len(),
        done.err
    );
    let terminal = exec("-t=true", &["/bin/sh", "-c", "test -t 0 && test -t 1 && echo is-a-terminal; exit 6"]);
    let terminal: Vec<&str> = terminal.iter().map(String::as_str).collect();
    let done = stock.cli().run_on_terminal(&terminal, b"")?;
    ensure!(done.code == 6 && done.out.contains("is-a-terminal"), "{} {:?} {:?}", done.code, done.out, done.err);
    Ok(())
}
