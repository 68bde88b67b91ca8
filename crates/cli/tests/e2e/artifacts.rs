//! What tasks find in their directories, from the outside: the examples, and SIGKILL for the agent in the middle of a
//! download.

use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex},
};

use serde_json::json;

use crate::agent::{Agent, example, until};

/// Serves one body, or with none its first bytes and then nothing more. Ends with the test's process.
fn serve(body: Option<Vec<u8>>) -> (SocketAddr, Arc<Mutex<usize>>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("addr");
    let asked = Arc::new(Mutex::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|n| n > 2) {}
            *count.lock().expect("lock") += 1;
            let mut stream = reader.into_inner();
            let length = body.as_ref().map_or(1 << 30, Vec::len);
            let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
            let _ = stream.write_all(body.as_deref().unwrap_or(b"begin"));
            open.push(stream);
            if body.is_some() {
                open.clear();
            }
        }
    });
    (addr, asked)
}

#[test]
fn the_artifact_example_runs() {
    let dir = tempfile::tempdir().expect("temp dir");
    std::fs::write(dir.path().join("greet.sh"), "echo fetched for $1\n").expect("script");
    let packed = dir.path().join("greeting.tar.gz");
    let tar = std::process::Command::new("tar")
        .arg("-czf")
        .arg(&packed)
        .arg("-C")
        .arg(dir.path())
        .arg("greet.sh")
        .status()
        .expect("tar");
    assert!(tar.success());
    let sum = std::process::Command::new("sha256sum").arg(&packed).output().expect("sha256sum").stdout;
    let sum = String::from_utf8_lossy(&sum).split(' ').next().expect("a sum").to_owned();
    let (addr, asked) = serve(Some(std::fs::read(&packed).expect("the archive")));

    let agent = Agent::start("");
    let file = example("artifact.nomad.hcl").display().to_string();
    let url = format!("url=http://{addr}/greeting.tar.gz");
    agent.cli_ok(&["job", "run", "-var", &url, "-var", &format!("sum=sha256:{sum}"), &file]);
    let done = agent.alloc("artifact", "complete");
    assert_eq!(agent.logs(&done, "greet"), "fetched for greet\n");
    assert_eq!(*asked.lock().expect("lock"), 1);
}

#[test]
fn the_volume_example_runs() {
    let shared = tempfile::tempdir().expect("temp dir");
    std::fs::set_permissions(shared.path(), std::fs::Permissions::from_mode(0o777)).expect("mode");
    let volume =
        |name: &str, more: &str| format!("  host_volume {name:?} {{\n    path = {:?}\n{more}  }}\n", shared.path());
    let agent =
        Agent::start(&format!("client {{\n{}{}}}", volume("shared", ""), volume("certs", "    read_only = true\n")));
    let file = example("volume.nomad.hcl").display().to_string();
    // Isolation needs root: elsewhere only the way to the scheduler is looked at.
    if !rustix::process::geteuid().is_root() {
        agent.cli_ok(&["job", "validate", &file]);
        skip::cannot("isolation needs root: the job was validated and not run");
        return;
    }
    until("the exec driver", || {
        let nodes = agent.get("/v1/nodes")?;
        (nodes[0]["Drivers"]["exec"]["Healthy"] == true).then_some(())
    });
    agent.cli_ok(&["job", "run", &file]);
    let done = agent.alloc("volume", "complete");
    assert_eq!(agent.logs(&done, "write"), "written\n");
    assert_eq!(std::fs::read_to_string(shared.path().join("log")).expect("there"), "written\n");
    assert!(!shared.path().join("x").exists(), "the read-only view was written through");

    // A volume that may only be read is for jobs that only read; one that no node has keeps the job waiting with the
    // reason.
    let hcl = std::fs::read_to_string(&file).expect("the example");
    let dir = tempfile::tempdir().expect("temp dir");
    for (from, to) in [("read_only = true", "read_only = false"), ("source = \"shared\"", "source = \"missing\"")] {
        let changed = dir.path().join("changed.nomad.hcl");
        std::fs::write(&changed, hcl.replace("job \"volume\"", "job \"waits\"").replace(from, to)).expect("file");
        let out = agent.cli(&["job", "plan", &changed.display().to_string()]);
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(text.contains("missing compatible host volumes"), "{from} -> {to}: {text}");
    }
}

#[test]
fn a_download_does_not_outlive_kill_9_of_the_agent_and_begins_again() {
    let (addr, asked) = serve(None);
    let mut agent = Agent::start("");
    agent.put(
        "/v1/jobs",
        &json!({"Job": {"ID": "fetching", "Type": "service",
            "TaskGroups": [{"Name": "g", "Update": {"MaxParallel": 0}, "Tasks": [{
            "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["600"]},
            "Resources": {"CPU": 20, "MemoryMB": 16},
            "Artifacts": [{"GetterSource": format!("http://{addr}/stuck"), "RelativeDest": "local/"}]
        }]}]}}),
    );
    let fetching = |agent: &Agent| agent.processes().values().filter(|line| line.contains("artifact-fetch")).count();
    for times in 1..=3 {
        until("the download", || (*asked.lock().expect("lock") == times && fetching(&agent) == 1).then_some(()));
        agent.kill();
        until("the end of the download", || (fetching(&agent) == 0).then_some(()));
        agent.launch();
    }
    until("the last download", || (*asked.lock().expect("lock") == 4).then_some(()));
    agent.cli_ok(&["job", "stop", "fetching"]);
    until("the end of everything", || (fetching(&agent) == 0).then_some(()));
    agent.alloc("fetching", "complete");
}
