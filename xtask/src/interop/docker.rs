//! The driver `docker` against a real engine: everything of it, and every process killed in the middle.

use std::{
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Agent, program},
    docker_cores, docker_images,
    docker_jobs::{COUNTER, job, none_lost_or_doubled, numbers},
    dockerd::{self, Daemon},
};
use crate::local::{BOUND, kill, processes_like, until};

/// The check.
pub(crate) fn check() -> Result<()> {
    dockerd::need(&[])?;
    let mut daemon = Daemon::new(7)?;
    let login = daemon.dir().join("login.json");
    docker_images::login_file(&login, "registry.of.nobody")?;
    let config = format!(
        "plugin \"docker\" {{\n  config {{\n    endpoint = {:?}\n    auth {{\n      config = {login:?}\n    \
            }}\n  }}\n}}",
        daemon.url()
    );
    let mut agent = Agent::start("docker", &[], &config)?;
    story(&mut agent, &mut daemon, &login)
        .with_context(|| format!("the end of the agent's log:\n{}\n{}", agent.log_tail(), daemon.log_tail()))?;
    drop(agent);
    daemon.end()?;
    Ok(())
}

fn health(agent: &Agent) -> Result<Value> {
    Ok(agent.get("/v1/nodes")?[0]["Drivers"]["docker"].clone())
}

fn story(agent: &mut Agent, daemon: &mut Daemon, login: &Path) -> Result<()> {
    until("the reason why there is no engine", BOUND, || {
        let seen = health(agent)?;
        let why = seen["HealthDescription"].as_str().unwrap_or_default();
        Ok((seen["Healthy"] == false && why.contains("cannot be reached")).then_some(()))
    })?;
    daemon.up()?;
    daemon.import_image()?;
    until("a healthy driver", BOUND, || Ok((health(agent)?["Healthy"] == true).then_some(())))?;

    one_run(agent)?;
    task_api(agent)?;
    refused(agent)?;
    docker_images::registries(agent, daemon, login)?;
    docker_images::archive(agent, daemon)?;
    docker_images::options(agent, daemon)?;
    out_of_memory(agent, daemon)?;
    docker_cores::check(agent, daemon)?;
    let (alloc, container) = service(agent, daemon)?;
    killed_in_turn(agent, daemon, &alloc, &container)?;
    cut_off_starts(agent, daemon)?;
    daemon.until_empty()
}

/// Exit code, both streams, environment, directories, user.
fn one_run(agent: &Agent) -> Result<()> {
    let script = "echo to-stdout; echo to-stderr >&2; id -u; echo $NOMAD_TASK_DIR $NOMAD_META_color; echo shared > \
        /alloc/data/f; cat /local/given; exit 7";
    let mut job = job("ends", "batch", json!({"command": "/bin/sh", "args": ["-c", script], "work_dir": "/tmp"}));
    let task = &mut job["Job"]["TaskGroups"][0]["Tasks"][0];
    task["Meta"] = json!({"color": "red"});
    task["User"] = "guest".into();
    task["Config"]["volumes"] = json!(["../alloc/data:/again"]);
    task["Config"]["command"] = "/bin/sh".into();
    task["Config"]["args"] = json!(["-c", script.replace("cat /local/given", "cat /again/f")]);
    agent.submit(&job)?;
    let ended = until("the end of the batch job", BOUND, || agent.alloc("ends", "failed"))?;
    let events = agent.events(&ended)?;
    ensure!(
        events.iter().any(|e| e["Type"] == "Terminated" && e["ExitCode"] == 7),
        "no Terminated event with exit code 7: {events:?}"
    );
    for (stream, wanted) in [("stdout", "to-stdout\n1000\n/local red\nshared\n"), ("stderr", "to-stderr\n")] {
        agent.until_output(&ended, stream, wanted)?;
    }
    Ok(())
}

/// A container reaches the HTTP API through the socket in its secrets directory: as its own user too, with its token
/// and not without. What asks is this program, with the libraries that it loads, which no image has.
fn task_api(agent: &Agent) -> Result<()> {
    let bring = "cp -L $(ldd PROGRAM | grep -o '/[^ ]*') . && { ln PROGRAM drover 2>/dev/null || cp PROGRAM drover; }";
    let ask = "export NOMAD_ADDR=unix://$NOMAD_SECRETS_DIR/api.sock; drover() { /local/ld-linux* --library-path \
        /local /local/drover \"$@\"; }; \
               id -u; drover job status >/dev/null && echo with; NOMAD_TOKEN= drover job status >/dev/null || echo \
               without; \
               trap 'exit 0' TERM; while true; do busybox sleep 1; done";
    for (name, user, id) in [("asks", "", 0), ("asks-as-guest", "guest", 1000)] {
        let mut job = job(name, "service", json!({"command": "/bin/sh", "args": ["-c", ask]}));
        docker_images::bring(&mut job, &bring.replace("PROGRAM", &program().display().to_string()));
        let task = &mut job["Job"]["TaskGroups"][0]["Tasks"][1];
        task["User"] = user.into();
        task["Identity"] = json!({"Env": true});
        agent.submit(&job)?;
        let alloc = until("the task that asks", BOUND, || agent.alloc(name, "running"))?;
        let wanted = format!("{id}\nwith\nwithout\n");
        until(&format!("the answers {wanted:?}"), BOUND, || {
            let (said, errors) = (agent.output(&alloc, "stdout")?, agent.output(&alloc, "stderr")?);
            ensure!(said == wanted && errors.contains("Unauthorized"), "it reads {said:?} and {errors:?}");
            Ok(Some(()))
        })?;
        agent.delete(&format!("/v1/job/{name}"))?;
        until("the end of the task that asks", BOUND, || agent.alloc(name, "complete"))?;
    }
    Ok(())
}

/// What cannot be had is said by name.
fn refused(agent: &Agent) -> Result<()> {
    for (id, config, part) in [
        ("no-image", json!({"image": "drover-none:1", "command": "x"}), "drover-none:1"),
        ("not-allowed", json!({"privileged": true}), "allow_privileged"),
        ("no-program", json!({"command": "/bin/none"}), "/bin/none"),
    ] {
        agent.submit(&job(id, "batch", config))?;
        let failed = until(&format!("the failure of {id}"), BOUND, || agent.alloc(id, "failed"))?;
        let text = serde_json::to_string(&agent.events(&failed)?)?;
        ensure!(text.contains(part), "{id}: {part} is not in {text}");
    }
    Ok(())
}

/// The engine hears of a lack of memory from the container's shim, which may be gone before it has said so: then nobody
/// can know, and another container has to show it. What the engine does say must reach the task's events.
fn out_of_memory(agent: &Agent, daemon: &Daemon) -> Result<()> {
    const TRIES: usize = 5;
    let mut late = 0;
    for n in 1..=TRIES {
        let id = format!("greedy-{n}");
        let mut job = job(&id, "batch", json!({"command": "/bin/tail", "args": ["/dev/zero"]}));
        job["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = 16.into();
        let heard = |daemon: &Daemon| -> Result<usize> {
            Ok(daemon
                .docker(&["events", "--since", "1h", "--until", "0s", "--filter", "event=oom", "--format", "{{.ID}}"])?
                .lines()
                .count())
        };
        let before = heard(daemon)?;
        agent.submit(&job)?;
        let failed = until("the end of the greedy job", BOUND, || agent.alloc(&id, "failed"))?;
        let events = agent.events(&failed)?;
        ensure!(
            events.iter().any(|e| e["Type"] == "Terminated" && e["ExitCode"] == 137),
            "it was not killed: {events:?}"
        );
        if events.iter().any(|e| e["Type"] == "Terminated" && e["Details"]["oom_killed"] == "true") {
            return Ok(());
        }
        // The engine may hear of it after the end, and later than the driver waits for it: that counts as a try.
        late += usize::from(heard(daemon)? != before);
        ensure!(late < TRIES, "the engine tells that memory was short, no event of the task does: {events:?}");
        eprintln!("    the engine has not heard in time why container {n} was killed");
    }
    bail!("the engine never heard that memory was short, in {TRIES} tries")
}

/// A service with a port; stats, signal, exec.
fn service(agent: &Agent, daemon: &Daemon) -> Result<(String, String)> {
    let config = json!({"command": "/bin/sh", "args": ["-c", format!("busybox httpd -p 8080 -h /etc; \
        {COUNTER}")], "ports": ["http"], "init": true});
    let mut job = job("stays", "service", config);
    let group = &mut job["Job"]["TaskGroups"][0];
    group["Networks"] = json!([{"Mode": "host", "DynamicPorts": [{"Label": "http", "To": 8080}]}]);
    group["Tasks"][0]["KillTimeout"] = 1_000_000_000_i64.into();
    agent.submit(&job)?;
    let id = until("the running service", BOUND, || agent.alloc("stays", "running"))?;
    let container = daemon.one()?;

    let detail = agent.get(&format!("/v1/allocation/{id}"))?;
    let port = &detail["AllocatedResources"]["Shared"]["Ports"][0];
    let address = format!("{}:{}", port["HostIP"].as_str().unwrap_or_default(), port["Value"]);
    until(&format!("an answer at {address}"), BOUND, || {
        let mut stream = TcpStream::connect(&address)?;
        stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text.contains("guest").then_some(()))
    })?;

    agent.until_memory(&id)?;
    agent.put(&format!("/v1/client/allocation/{id}/signal"), &json!({"Task": "t", "Signal": "SIGUSR1"}))?;
    until("the signal's echo", BOUND, || Ok(agent.output(&id, "stdout")?.contains("got-usr1").then_some(())))?;

    let said = agent.exec(&id, &["/bin/sh", "-c", "echo out; echo err >&2; exit 5"])?;
    ensure!(said == (5, "out\n".into(), "err\n".into()), "exec answered {said:?}");
    // A command whose client goes is ended.
    let mut client = agent.exec_command(&id, &["/bin/sleep", "98766"]).stdout(std::process::Stdio::null()).spawn()?;
    let commands = || processes_like("/bin/sleep 98766");
    until("the command", BOUND, || Ok((!commands().is_empty()).then_some(())))?;
    client.kill()?;
    client.wait()?;
    until("the end of the command", BOUND, || Ok(commands().is_empty().then_some(())))?;
    Ok((id, container))
}

/// Plugin, agent and engine are killed; the container is the same and its log has no gap and nothing twice.
fn killed_in_turn(agent: &mut Agent, daemon: &mut Daemon, alloc: &str, container: &str) -> Result<()> {
    let goes_on = |agent: &Agent, daemon: &Daemon, after: &str| -> Result<()> {
        let before =
            until("an agent that answers", BOUND, || Ok(numbers(&agent.output(alloc, "stdout")?).last().copied()))?;
        until(&format!("further lines after {after}"), BOUND, || {
            Ok(numbers(&agent.output(alloc, "stdout")?).last().is_some_and(|n| *n > before + 5).then_some(()))
        })?;
        ensure!(daemon.one()? == container, "another container after {after}");
        until(&format!("stats after {after}"), BOUND, || Ok(agent.stats(alloc)?.map(drop)))
    };
    agent.kill_plugin("driver docker")?;
    goes_on(agent, daemon, "kill -9 of the plugin")?;
    agent.crash_and_restart()?;
    goes_on(agent, daemon, "kill -9 of the agent")?;
    daemon.crash()?;
    until("an unhealthy driver without its engine", BOUND, || Ok((health(agent)?["Healthy"] == false).then_some(())))?;
    ensure!(
        agent.alloc("stays", "running")?.as_deref() == Some(alloc),
        "the task is still said to run while its engine is away"
    );
    daemon.up()?;
    until("a healthy driver with its engine", BOUND, || Ok((health(agent)?["Healthy"] == true).then_some(())))?;
    goes_on(agent, daemon, "kill -9 of the engine")?;
    none_lost_or_doubled(&agent.output(alloc, "stdout")?)?;
    let state = agent.task(alloc)?;
    ensure!(state["Restarts"] == 0, "the task was restarted: {state}");

    // It does not listen to SIGTERM, so it is killed after its kill_timeout.
    agent.delete("/v1/job/stays")?;
    until("the end of the service", BOUND, || agent.alloc("stays", "complete"))?;
    daemon.until_empty()
}

/// The plugin dies at every moment of a start; there is one container in the end, and none after the stop.
fn cut_off_starts(agent: &Agent, daemon: &Daemon) -> Result<()> {
    for (round, pause_ms) in [5, 60, 130, 220, 350].into_iter().enumerate() {
        let id = format!("cut-{round}");
        let mut job = job(&id, "service", json!({"command": "/bin/sleep", "args": ["1000"]}));
        job["Job"]["TaskGroups"][0]["RestartPolicy"] =
            json!({"Attempts": 5, "Mode": "delay", "Interval": 60_000_000_000_i64, "Delay": 100_000_000});
        agent.submit(&job)?;
        // The moment itself is what varies here, nothing waits for it.
        std::thread::sleep(Duration::from_millis(pause_ms));
        agent.pids(|command| command.ends_with("driver docker")).into_iter().try_for_each(kill)?;
        until(&format!("{id} running"), BOUND, || agent.alloc(&id, "running"))?;
        until(&format!("one container of {id}"), BOUND, || Ok((daemon.containers(true)?.len() == 1).then_some(())))?;
        agent.delete(&format!("/v1/job/{id}"))?;
        until(&format!("the end of {id}"), BOUND, || Ok(daemon.containers(true)?.is_empty().then_some(())))?;
    }
    Ok(())
}

impl Agent {
    /// `alloc exec`.
    fn exec_command(&self, alloc: &str, command: &[&str]) -> std::process::Command {
        let url = self.address();
        let mut run = std::process::Command::new(program());
        run.args(["alloc", "exec", "-address", &url, "-task", "t", alloc])
            .args(command)
            .stdin(std::process::Stdio::null());
        run
    }

    /// `alloc exec`: exit code, standard output, standard error.
    pub(crate) fn exec(&self, alloc: &str, command: &[&str]) -> Result<(i32, String, String)> {
        let out = self.exec_command(alloc, command).output()?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((out.status.code().unwrap_or(-1), text(out.stdout), text(out.stderr)))
    }
}
