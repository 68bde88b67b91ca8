//! The mock driver: what a job can make a driver of our SDK say and do, and what that costs the agent.

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::stock::{Stock, job, script, until};

pub(super) fn reports(stock: &mut Stock) -> Result<()> {
    // A plugin that an agent has found again after its own death has lost the pipe to it: its log lines go nowhere, so
    // a new one.
    stock.kill_plugin("mock")?;
    stock.ready()?;
    // Events, lines of log, figures, an address that differs from the node's.
    let config = json!({"run_for": "1h", "events": 3, "log_lines": 5000, "stdout_string": "hello\n",
                        "stderr_string": "oops\n", "memory_mb": 77, "cpu_percent": 12.5, "driver_ip": "127.0.0.9",
                        "driver_port_map": "web:8080", "driver_advertise": true});
    let mut talks = job("talks", "service", "mock", &config);
    talks["Job"]["TaskGroups"][0]["Tasks"][0]["Services"] =
        json!([{"Name": "talker", "Provider": "nomad", "AddressMode": "driver", "PortLabel": "web"}]);
    talks["Job"]["TaskGroups"][0]["Networks"] = json!([{"DynamicPorts": [{"Label": "web", "To": 8080}]}]);
    let alloc = stock.run_until(&talks, "running")?;
    for n in 1..=3 {
        stock.event(&alloc, "an event of the driver", |e| e["DisplayMessage"] == format!("event {n} of 3"))?;
    }
    stock.log(&alloc, "stdout", "its output", |t| t == "hello\n")?;
    stock.log(&alloc, "stderr", "its output", |t| t == "oops\n")?;
    stock.stats(&alloc, |t| {
        let usage = &t["ResourceUsage"];
        usage["MemoryStats"]["RSS"] == 77 << 20 && usage["CpuStats"]["Percent"] == 12.5
    })?;
    until("the service at the driver's address", || {
        let services = stock.agent.get("/v1/service/talker")?;
        Ok((services[0]["Address"] == "127.0.0.9" && services[0]["Port"] == 8080).then_some(()))
    })?;
    // A plugin never waits for its host to read: of a flood, lines are left out, and the next one says how many.
    until("lines of the driver in the agent's log", || {
        let log = stock.agent.log();
        let lines: Vec<&str> = log.lines().filter(|l| l.contains("a log line that the job asked for")).collect();
        ensure!(
            lines.iter().all(|l| l.contains("[INFO]") && !l.contains("@message")),
            "a line was not understood: {:?}",
            lines.first()
        );
        let left_out = |l: &&str| -> Option<usize> {
            l.split("lines_dropped_before=").nth(1)?.split_whitespace().next()?.parse().ok()
        };
        let dropped: usize = log.lines().filter_map(|l| left_out(&l)).sum();
        if lines.len() + dropped >= 5000 {
            Ok(Some(()))
        } else {
            bail!("{} lines came, {dropped} were left out", lines.len())
        }
    })?;
    stock.stop("talks")?;

    let alloc =
        stock.run_until(&job("signalled", "batch", "mock", &json!({"run_for": "10ms", "exit_signal": 9})), "failed")?;
    stock.event(&alloc, "the signal", |e| e["Type"] == "Terminated" && e["Signal"] == 9)?;
    let config = json!({"run_for": "10ms", "exit_code": 137, "exit_signal": 9, "exit_oom": true});
    let alloc = stock.run_until(&job("oom", "batch", "mock", &config), "failed")?;
    stock.event(&alloc, "the lack of memory", |e| e["Type"] == "Terminated" && e["Details"]["oom_killed"] == "true")?;
    let config = json!({"run_for": "10ms", "exit_err_msg": "lost its disk"});
    let alloc = stock.run_until(&job("err", "batch", "mock", &config), "failed")?;
    stock.event(&alloc, "the error", |e| {
        e["Type"] == "Terminated" && e["Message"].as_str().is_some_and(|m| m.contains("lost its disk"))
    })?;
    Ok(())
}

pub(super) fn contained(stock: &mut Stock) -> Result<()> {
    let bystander = stock.run_until(&script("bystander", "service", "raw_exec", "exec sleep 77040"), "running")?;
    let pid = stock.workload("sleep 77040")?;
    let says = |text: &'static str| {
        move |e: &serde_json::Value| {
            e["DisplayMessage"].as_str().is_some_and(|m| m.contains(text))
                || e["Message"].as_str().is_some_and(|m| m.contains(text))
        }
    };
    // (job, driver, configuration, what an event says)
    let wrong = [
        ("unknown-key", "raw_exec", json!({"command": "/bin/true", "colour": "red"}), "colour"),
        ("no-command", "raw_exec", json!({"args": ["x"]}), "command"),
        ("no-program", "raw_exec", json!({"command": "/no/such/program"}), "/no/such/program"),
        ("refused", "raw_exec", json!({"command": "/bin/true", "cgroup_v2_override": "x.slice"}), "cgroup_v2_override"),
        ("start-error", "mock", json!({"start_error": "no image"}), "no image"),
        ("start-panic", "mock", json!({"panic": ["start"]}), "panicked"),
    ];
    for (id, driver, config, text) in wrong {
        let alloc = stock.run_until(&job(id, "batch", driver, &config), "failed")?;
        stock.event(&alloc, text, says(text))?;
    }
    // A wait, a look and a sample that panic are errors of these calls.
    stock.run_until(&job("wait-panic", "batch", "mock", &json!({"run_for": "1h", "panic": ["wait"]})), "failed")?;
    let alloc = stock.run_until(
        &job("calls-panic", "service", "mock", &json!({"run_for": "1h", "panic": ["signal", "exec", "stats"]})),
        "running",
    )?;
    let (status, text) = stock
        .agent
        .put_text(&format!("/v1/client/allocation/{alloc}/signal"), &json!({"Task": "t", "Signal": "SIGHUP"}))?;
    ensure!(status == 500 && text.contains("panicked"), "{status} {text}");
    let done = stock.cli().run(&["alloc", "exec", "-i=false", "-t=false", &alloc, "/anything"], b"")?;
    ensure!(done.code == 1 && done.err.contains("panicked"), "{} {:?}", done.code, done.err);
    stock.stop("calls-panic")?;
    // A call that never answers holds up its own task only.
    stock.run(&job("hangs", "service", "mock", &json!({"run_for": "1h", "hang": ["start"]})))?;
    // A plugin that dies again and again.
    for n in 1..=3 {
        let before = stock.plugin(&stock.agent, "mock");
        stock.run(&job(
            &format!("dies-{n}"),
            "service",
            "mock",
            &json!({"run_for": "1h", "plugin_exit_after": "300ms"}),
        ))?;
        until("another process of the plugin", || {
            Ok(stock.plugin(&stock.agent, "mock").filter(|now| Some(*now) != before))
        })?;
        stock.ready()?;
    }
    // And Nomad's own log collector of the task whose start hangs, a plugin process as well.
    stock.note_killed_plugins(3 + 1);
    for id in ["dies-1", "dies-2", "dies-3", "hangs"] {
        stock.agent.delete(&format!("/v1/job/{id}?purge=true"))?;
    }
    stock.ready()?;
    stock.stats(&bystander, |_| true)?;
    ensure!(stock.workloads("sleep 77040") == [pid], "the bystander is another process");
    stock.stop("bystander")
}
