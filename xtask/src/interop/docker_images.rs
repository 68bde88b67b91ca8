//! Where images come from – a registry that asks for credentials, an archive – and what a container is given.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::Agent,
    docker_jobs::job,
    dockerd::{Daemon, IMAGE},
    registry::Registry,
};
use crate::local::{BOUND, until};

/// `somebody:secret`
const CREDENTIALS: &str = "c29tZWJvZHk6c2VjcmV0";

/// A file as `docker login` writes it, which knows the registry by one of its names. It is there when the agent starts;
/// the registry comes later.
pub(super) fn login_file(path: &Path, registry: &str) -> Result<()> {
    let auths = json!({"auths": {registry: {"auth": CREDENTIALS}}});
    Ok(fs::write(path, auths.to_string())?)
}

/// Pulls with the job's credentials, with those of the operator's file, with none, with wrong ones.
pub(super) fn registries(agent: &Agent, daemon: &Daemon, login: &Path) -> Result<()> {
    let registry = Registry::start(&daemon.dir().join("tree.tar"), CREDENTIALS)?;
    let (known, unknown) = (format!("127.0.0.1:{}", registry.port()), format!("localhost:{}", registry.port()));
    login_file(login, &known)?;
    let echo = |id: &str, image: &str, auth: Value| -> Result<String> {
        let mut config = json!({"image": image, "command": "/bin/echo", "args": ["here"]});
        if !auth.is_null() {
            config["auth"] = json!([auth]);
        }
        agent.submit(&job(id, "batch", config))?;
        Ok(id.to_owned())
    };
    let runs = [
        echo("auth-of-job", &format!("{unknown}/of/job:1"), json!({"username": "somebody", "password": "secret"}))?,
        echo("auth-of-file", &format!("{known}/of/file:1"), Value::Null)?,
    ];
    for id in runs {
        let ended = until(&format!("the end of {id}"), BOUND, || agent.alloc(&id, "complete"))?;
        agent.until_output(&ended, "stdout", "here\n").with_context(|| id)?;
    }
    ensure!(registry.refused() > 0, "the registry gave everything to everybody");
    let fails = [
        echo("auth-missing", &format!("{unknown}/of/nobody:1"), Value::Null)?,
        echo("auth-wrong", &format!("{known}/of/stranger:1"), json!({"username": "somebody", "password": "else"}))?,
    ];
    for id in fails {
        let failed = until(&format!("the failure of {id}"), BOUND, || agent.alloc(&id, "failed"))?;
        let text = serde_json::to_string(&agent.events(&failed)?)?;
        ensure!(
            text.contains("/of/") && !text.contains("\"else\""),
            "{id}: the image is not named, or the password is: {text}"
        );
    }
    Ok(())
}

/// A task before the main one that puts something into that one's `local` directory.
pub(super) fn bring(job: &mut Value, script: &str) {
    let script = format!("mkdir -p \"$NOMAD_ALLOC_DIR/../t/local\" && cd \"$NOMAD_ALLOC_DIR/../t/local\" && {script}");
    let task = json!({
        "Name": "bring", "Driver": "raw_exec", "Config": {"command": "/bin/sh", "args": ["-c", script]},
        "Lifecycle": {"Hook": "prestart", "Sidecar": false}, "Resources": {"CPU": 20, "MemoryMB": 32},
    });
    if let Some(tasks) = job["Job"]["TaskGroups"][0]["Tasks"].as_array_mut() {
        tasks.insert(0, task);
    }
}

/// An image that no registry has, from an archive in the task's directory; a task before the main one brings it.
pub(super) fn archive(agent: &Agent, daemon: &Daemon) -> Result<()> {
    const NAME: &str = "of-an-archive:1";
    let file = daemon.dir().join("image.tar");
    daemon.docker(&["tag", IMAGE, NAME])?;
    daemon.docker(&["save", "-o", &file.display().to_string(), NAME])?;
    daemon.docker(&["rmi", NAME])?;
    let mut job = job(
        "archive",
        "batch",
        json!({"image": NAME, "load": "image.tar", "command": "/bin/echo", "args": ["loaded"]}),
    );
    bring(&mut job, &format!("cp {:?} image.tar", file.display()));
    agent.submit(&job)?;
    let ended = until("the end of the task from an archive", BOUND, || agent.alloc("archive", "complete"))?;
    agent.until_output(&ended, "stdout", "loaded\n")
}

/// Entrypoint, mounts, labels and environment, as the engine and the task see them.
pub(super) fn options(agent: &Agent, daemon: &Daemon) -> Result<()> {
    let script = "echo $COLOR $1; grep -c ' /scratch tmpfs ' /proc/mounts; cat /here/f; echo x > /here/f 2>/dev/null \
        || echo read-only; \
                  trap 'exit 0' TERM; while true; do sleep 1; done";
    let config = json!({
        "entrypoint": ["/bin/sh", "-c", script], "command": "zero", "args": ["one"],
        "labels": [{"team": "a"}, {"tier": "b"}],
        "mount": [
            {"type": "tmpfs", "target": "/scratch", "tmpfs_options": [{"size": 1_000_000}]},
            {"type": "bind", "source": "local", "target": "/here", "readonly": true},
        ],
    });
    let mut job = job("options", "service", config);
    let task = &mut job["Job"]["TaskGroups"][0]["Tasks"][0];
    task["Env"] = json!({"COLOR": "green"});
    bring(&mut job, "echo 'from the job' > f");
    agent.submit(&job)?;
    let id = until("the service with options", BOUND, || agent.alloc("options", "running"))?;
    agent.until_output(&id, "stdout", "green one\n1\nfrom the job\nread-only\n")?;
    let container = daemon.docker(&["ps", "-q"])?;
    let labels = daemon.docker(&["inspect", "-f", "{{json .Config.Labels}}", container.trim()])?;
    let labels: Value = serde_json::from_str(&labels)?;
    ensure!(
        labels["team"] == "a" && labels["tier"] == "b" && labels["com.hashicorp.nomad.alloc_id"] == id.as_str(),
        "labels: {labels}"
    );
    agent.delete("/v1/job/options")?;
    daemon.until_empty()
}
