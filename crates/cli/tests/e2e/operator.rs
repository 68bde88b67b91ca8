//! Metadata of nodes, pools, namespaces, the settings of the scheduler, and the API as it is.

use std::{
    io::{BufRead as _, BufReader, Write},
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use serde_json::{Value, json};

use crate::agent::{Agent, drover, until};

#[test]
fn what_operators_look_at_and_set() {
    let agent = Agent::start("name = \"here\"\n");
    assert_eq!(agent.cli_ok(&["node", "config", "-servers"]).trim(), agent.rpc());

    agent.cli_ok(&["node", "meta", "apply", "-node-id", "here", "rack=r2", "zone=a"]);
    agent.cli_ok(&["node", "meta", "apply", "-unset", "zone"]);
    let meta = agent.cli_ok(&["node", "meta", "read", "-node-id", "here"]);
    assert!(meta.contains("Dynamic Meta\nrack = r2") && !meta.contains("zone = a"), "{meta}");
    let meta: Value = serde_json::from_str(&agent.cli_ok(&["node", "meta", "read", "-json"])).expect("JSON");
    assert_eq!(meta["Meta"]["rack"], "r2");
    until("the node to have it", || {
        agent.cli_ok(&["node", "status", "-verbose", "here"]).contains("rack = r2").then_some(())
    });
    assert_eq!(agent.cli(&["node", "meta", "apply"]).status.code(), Some(1));

    let pools = agent.cli_ok(&["node", "pool", "list"]);
    assert!(pools.starts_with("Name     Description\nall ") && pools.contains("default"), "{pools}");
    let page = agent.cli(&["node", "pool", "list", "-per-page", "1"]);
    assert!(String::from_utf8_lossy(&page.stderr).contains("-page-token default"), "{page:?}");
    let info = agent.cli_ok(&["node", "pool", "info", "default"]);
    assert!(info.lines().any(|line| line.starts_with("Name ") && line.ends_with("= default")), "{info}");
    assert!(agent.cli_ok(&["node", "pool", "nodes", "default"]).contains("here"));
    assert!(agent.cli_ok(&["node", "pool", "jobs", "default"]).contains("No jobs"));
    assert!(agent.cli_ok(&["namespace", "list"]).contains("default"));
    assert!(agent.cli_ok(&["namespace", "status", "default"]).contains("Enabled Drivers        = *"));
    let namespace: Value = serde_json::from_str(&agent.cli_ok(&["namespace", "inspect", "default"])).expect("JSON");
    assert_eq!(namespace["Name"], "default");

    assert!(agent.cli_ok(&["operator", "scheduler", "get-config"]).contains("Scheduler Algorithm           = binpack"));
    agent.cli_ok(&["operator", "scheduler", "set-config", "-scheduler-algorithm", "spread"]);
    assert!(agent.cli_ok(&["operator", "scheduler", "get-config"]).contains("Scheduler Algorithm           = spread"));
    let stale =
        agent.cli(&["operator", "scheduler", "set-config", "-check-index", "1", "-scheduler-algorithm", "binpack"]);
    assert_eq!(stale.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&stale.stderr).contains("configuration has changed"), "{stale:?}");
    agent.cli_ok(&["system", "reconcile", "summaries"]);
    assert!(agent.cli_ok(&["server", "members", "-detailed"]).contains("role=nomad"));

    assert_eq!(agent.cli_ok(&["operator", "api", "/v1/status/leader"]).trim(), format!("{:?}", agent.rpc()));
    assert_eq!(agent.cli_ok(&["operator", "api", "-filter", "Name == \"nobody\"", "nodes"]).trim(), "[]");
    let asked = agent.cli(&["operator", "api", "-verbose", "-H", "X-Mine: yes", "/v1/status/leader"]);
    let told = String::from_utf8_lossy(&asked.stderr).into_owned();
    for part in
        ["> GET /v1/status/leader HTTP/1.1", "> x-mine: yes", "< HTTP/1.1 200 OK", "< content-type: application/json"]
    {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    assert_eq!(String::from_utf8_lossy(&asked.stdout).trim(), format!("{:?}", agent.rpc()));
    let dry = Command::new(drover())
        .args(["operator", "api", "-dryrun", "-X", "delete", "-H", "X-Mine: it's", "job/a b?purge=true"])
        .env("DROVER_ADDR", agent.address())
        .env("DROVER_TOKEN", "secret")
        .stdin(std::process::Stdio::null())
        .output()
        .expect("runs");
    let dry = String::from_utf8_lossy(&dry.stdout).into_owned();
    assert!(dry.starts_with("curl \\\n  -X DELETE \\\n") && dry.contains("-H 'X-Mine: it'\\''s'"), "{dry}");
    assert!(
        dry.contains("${DROVER_TOKEN}") && !dry.contains("secret") && dry.contains("/v1/job/a b?purge=true'"),
        "{dry}"
    );
    let mut child = Command::new(drover())
        .args(["operator", "api", "-X", "POST", "/v1/search"])
        .env("DROVER_ADDR", agent.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("drover");
    child.stdin.take().expect("stdin").write_all(b"{\"Prefix\": \"\", \"Context\": \"nodes\"}").expect("written");
    let found: Value = serde_json::from_slice(&child.wait_with_output().expect("output").stdout).expect("JSON");
    assert_eq!(found["Matches"]["nodes"].as_array().map(Vec::len), Some(1), "{found}");
}

#[test]
fn namespaces_and_node_pools_come_from_files_and_go() {
    let agent = Agent::start("");
    let fails = |args: &[&str], says: &str| {
        let output = agent.cli(args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.contains(says)), (Some(1), true), "{args:?}: {said}");
    };
    let file = |name: &str, text: &str| {
        let path = agent.dir().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("text").to_owned()
    };
    assert!(agent.cli_ok(&["namespace", "apply", "dev"]).contains("Successfully applied namespace \"dev\"!"));
    let text = "name = \"dev\"\nmeta { team = \"web\" }\ncapabilities { enabled_task_drivers = [\"exec\"] }\n";
    agent.cli_ok(&["namespace", "apply", &file("dev.hcl", text)]);
    agent.cli_ok(&["namespace", "apply", "-description", "of developers", "dev"]);
    let shown = agent.cli_ok(&["namespace", "status", "dev"]);
    for part in ["= of developers", "Enabled Drivers        = exec", "team = web"] {
        assert!(shown.contains(part), "{part:?} is not in\n{shown}");
    }
    fails(&["namespace", "apply", "-quota", "x", "dev"], "using non-existent quota");
    fails(&["namespace", "apply", &file("wrong.hcl", "nam = 1")], "unknown field \"nam\"");
    agent.cli_ok(&["namespace", "delete", "dev"]);
    fails(&["namespace", "delete", "dev"], "namespace not found");

    let example = agent.dir().join("pool.hcl");
    let example = example.to_str().expect("text");
    agent.cli_ok(&["node", "pool", "init", example]);
    fails(&["node", "pool", "init", example], "could not create");
    assert!(agent.cli_ok(&["node", "pool", "apply", example]).contains("applied node pool \"example\"!"));
    let shown = agent.cli_ok(&["node", "pool", "info", "example"]);
    assert!(shown.contains("Node Identity TTL = 24h0m0s") && shown.contains("owner = platform"), "{shown}");
    let json = agent.dir().join("pool.json");
    let json = json.to_str().expect("text");
    agent.cli_ok(&["node", "pool", "init", "-out", "json", "-quiet", json]);
    agent.cli_ok(&["node", "pool", "apply", "-json", json]);
    agent.cli_ok(&["node", "pool", "delete", "example"]);
    fails(&["node", "pool", "delete", "default"], "built-in node pool");
}

#[test]
fn a_snapshot_is_saved_online_inspected_and_restored_into_an_empty_directory() {
    let mut agent = Agent::start("");
    let job = |id: &str| {
        serde_json::json!({"Job": {
            "ID": id, "Type": "service",
            "TaskGroups": [{"Name": "g", "Tasks": [{
                "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["31072"]},
                "Resources": {"CPU": 20, "MemoryMB": 16}
            }]}]
        }})
    };
    agent.put("/v1/jobs", &job("kept"));
    agent.alloc("kept", "running");
    let file = agent.dir().join("drover.snap");
    let path = file.to_str().expect("text");
    let said = agent.cli_ok(&["operator", "snapshot", "save", path]);
    assert!(said.contains("written to"), "{said}");
    {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(
            std::fs::metadata(&file).expect("the file").permissions().mode() & 0o777,
            0o600,
            "there are secrets in it"
        );
    }
    let shown: Value =
        serde_json::from_str(&agent.cli_ok(&["operator", "snapshot", "inspect", "-json", path])).expect("JSON");
    assert_eq!(
        (&shown["Tables"]["jobs"]["Rows"], shown["Index"].as_u64() > Some(0)),
        (&serde_json::json!(1), true),
        "{shown}"
    );
    assert!(agent.cli_ok(&["operator", "snapshot", "inspect", path]).contains("Cluster ID   = "));
    let cluster = shown["ClusterID"].as_str().expect("an id").to_owned();
    let state: Value = serde_json::from_str(&agent.cli_ok(&["operator", "snapshot", "state", path])).expect("JSON");
    assert_eq!(
        (&state["Jobs"][0]["ID"], state["Allocs"].as_array().map(Vec::len)),
        (&serde_json::json!("kept"), Some(1))
    );
    assert!(
        !state.to_string().contains("PrivateKey") && state["Nodes"][0]["SecretID"] == "",
        "nothing secret is shown"
    );
    let keys = |agent: &Agent| agent.get("/.well-known/jwks.json").expect("keys")["keys"].clone();
    let signing = keys(&agent);
    assert_eq!((shown["Keys"].as_u64(), signing.as_array().map(Vec::len)), (Some(1), Some(1)), "{signing}");
    // Not into a server that runs, neither over HTTP nor below it.
    let (status, why) = agent.http("PUT", "/v1/operator/snapshot", "x").expect("an answer");
    assert!(status == 501 && why.contains("drover operator snapshot restore"), "{status} {why}");
    let data = agent.dir().join("data");
    let refused = agent.cli(&["operator", "snapshot", "restore", "-data-dir", data.to_str().expect("text"), path]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("is there already"),
        "{refused:?}"
    );
    // A damaged one is refused.
    let mut bytes = std::fs::read(&file).expect("the file");
    let half = bytes.len() / 2;
    bytes[half] ^= 1;
    let other = agent.dir().join("damaged.snap");
    std::fs::write(&other, bytes).expect("written");
    let refused = agent.cli(&["operator", "snapshot", "inspect", other.to_str().expect("text")]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("the snapshot is damaged"),
        "{refused:?}"
    );

    // The server's directory is lost; what is restored is the same cluster, whose task goes on.
    let pids = |agent: &Agent| -> Vec<i32> {
        agent
            .processes()
            .into_iter()
            .filter(|(_, line)| line.starts_with("/bin/sleep 31072"))
            .map(|(pid, _)| pid)
            .collect()
    };
    let before = until("the workload", || Some(pids(&agent)).filter(|pids| pids.len() == 1));
    agent.kill();
    std::fs::remove_dir_all(data.join("server")).expect("lost");
    let restored = agent.cli_ok(&["operator", "snapshot", "restore", "-data-dir", data.to_str().expect("text"), path]);
    assert!(restored.contains("restored to"), "{restored}");
    agent.launch();
    let again: Value = agent.get("/v1/agent/members").expect("members");
    assert_eq!(again["Members"][0]["Tags"]["id"], cluster.as_str(), "the same cluster");
    assert_eq!(keys(&agent), signing, "what was signed before can still be verified");
    agent.alloc("kept", "running");
    assert_eq!(pids(&agent), before, "the same process");
    assert!(agent.log().contains("a snapshot of index"), "it recovers first, and says why");
    until("the end of the recovery", || {
        let health = agent.get("/v1/agent/health?type=server")?;
        (health["server"]["ok"] == true).then_some(())
    });
    agent.put("/v1/jobs", &job("new"));
    agent.alloc("new", "running");
    assert!(before.iter().all(|pid| pids(&agent).contains(pid)), "still the same process");
}

/// What others may open below a directory, files and sockets, with their modes: what lies in a directory that they
/// may not enter is none of it. The agent works meanwhile: a directory may go between two looks.
fn open_to_others(dir: &std::path::Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    let Ok(entries) = std::fs::read_dir(dir) else { return assert!(!dir.exists(), "{} cannot be read", dir.display()) };
    for entry in entries.flatten() {
        let path = entry.path();
        let Ok(meta) = std::fs::symlink_metadata(&path) else { continue };
        let mode = meta.permissions().mode() & 0o777;
        if meta.is_dir() {
            // To enter it is enough: names can be guessed.
            if mode & 0o011 != 0 {
                open_to_others(&path, found);
            }
        } else if !meta.is_symlink() && mode & if meta.file_type().is_socket() { 0o022 } else { 0o066 } != 0 {
            found.push((path, mode));
        }
    }
}

#[test]
fn nobody_else_opens_what_an_agent_keeps() {
    let agent = Agent::start("");
    let job = serde_json::json!({"Job": {
        "ID": "near", "Type": "service",
        "TaskGroups": [{"Name": "g", "Tasks": [{
            "Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/sleep", "args": ["31073"]},
            "Resources": {"CPU": 20, "MemoryMB": 16}
        }]}]
    }});
    agent.put("/v1/jobs", &job);
    let alloc = agent.alloc("near", "running")["ID"].as_str().expect("an id").to_owned();
    // Executors and plugins have their sockets by now, and both databases their logs.
    let data = agent.dir().join("data");
    let mut found = Vec::new();
    open_to_others(&data, &mut found);
    let meant = |path: &std::path::Path| {
        let path = path.strip_prefix(&data).expect("below it").to_string_lossy().into_owned();
        // A task may run as any user and works in these; what is in `secrets` and `private` is not among them.
        let of_task =
            [format!("alloc/{alloc}/alloc/"), format!("alloc/{alloc}/t/local/"), format!("alloc/{alloc}/t/tmp/")];
        of_task.iter().any(|dir| path.starts_with(dir))
    };
    let unmeant: Vec<_> = found
        .iter()
        .filter(|(path, _)| !meant(path))
        .map(|(path, mode)| format!("{} {mode:o}", path.display()))
        .collect();
    assert_eq!(unmeant, [""; 0], "group or others can open these");
    for file in [
        "server/state.db",
        "server/state.db-wal",
        "server/state.db.mark",
        "client/node.sqlite",
        "client/node.sqlite-wal",
    ] {
        use std::os::unix::fs::PermissionsExt as _;
        let path = data.join(file);
        assert_eq!(
            std::fs::metadata(&path).unwrap_or_else(|e| panic!("{file}: {e}")).permissions().mode() & 0o777,
            0o600,
            "{file}"
        );
    }
    for dir in ["server", "server/keystore", "client", "client/run"] {
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(
            std::fs::metadata(data.join(dir)).unwrap_or_else(|e| panic!("{dir}: {e}")).permissions().mode() & 0o777,
            0o700,
            "{dir}"
        );
    }
}

#[test]
fn an_answer_of_the_api_that_goes_on_is_printed_as_it_comes() {
    let agent = Agent::start("");
    let mut command = Command::new(drover());
    command.args(["operator", "api", "/v1/event/stream?topic=Job"]).env("DROVER_ADDR", agent.address());
    let mut child = command.env_remove("NOMAD_ADDR").stdout(Stdio::piped()).spawn().expect("drover operator api");
    let (tell, lines) = mpsc::channel();
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let reader = std::thread::spawn(move || {
        out.lines().map_while(Result::ok).take_while(|line| tell.send(line.clone()).is_ok()).count()
    });
    // The stream begins with what comes after it was opened, so there is one more job until it tells of one.
    let mut jobs = 0;
    until("an event", || {
        jobs += 1;
        let task = json!({"Name": "t", "Driver": "raw_exec", "Config": {"command": "/bin/true"}});
        let group = json!({"Name": "g", "Count": 0, "Tasks": [task]});
        agent.put("/v1/jobs", &json!({"Job": {"ID": format!("j{jobs}"), "TaskGroups": [group]}}));
        let line = lines.recv_timeout(Duration::from_secs(1)).ok()?;
        line.contains("JobRegistered").then_some(())
    });
    child.kill().expect("killed");
    child.wait().expect("ended");
    drop(lines);
    reader.join().expect("the reader");
}

#[test]
fn a_fault_is_told_by_one_archive_without_secrets() {
    let agent = Agent::start("name = \"here\"\n");
    agent.run(
        "job \"told\" {\n  group \"g\" {\n    task \"t\" {\n      driver = \"raw_exec\"\n      env {\n        \
         PASSWORD = \"canary-of-the-job\"\n      }\n      config {\n        command = \"/bin/sleep\"\n        \
         args = [\"600\"]\n      }\n    }\n  }\n}\n",
    );
    agent.alloc("told", "running");
    agent.cli_ok(&["var", "put", "-force", "told", "key=canary-of-the-variable"]);
    let place = tempfile::tempdir().expect("a directory");
    let out = place.path().display().to_string();
    let short = ["operator", "debug", "-duration", "1500ms", "-interval", "1s"];
    let said = agent.cli_ok(&[&short[..], &["-output", &out, "-event-topic", "Job"]].concat());
    let dir = std::fs::read_dir(place.path()).expect("it is there").next().expect("one").expect("an entry").path();
    assert!(said.contains(&format!("files in {}", dir.display())), "{said}");
    let index: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.join("index.json")).expect("an index")).expect("JSON");
    assert_eq!(index["Failed"], json!([]), "{index}");
    let node = agent.get("/v1/nodes").expect("nodes")[0]["ID"].as_str().expect("an id").to_owned();
    let files: Vec<String> = serde_json::from_value(index["Files"].clone()).expect("names");
    for file in [
        "cluster/autopilot-health.json".to_owned(),
        format!("client/{node}/monitor.log"),
        format!("client/{node}/audit.json"),
        "interval/0000/jobs.json".to_owned(),
        "interval/0001/metrics.json".to_owned(),
        "eventstream.json".to_owned(),
    ] {
        assert!(files.contains(&file), "{file}: {files:?}");
    }
    assert!(files.iter().any(|file| file.starts_with("server/") && file.ends_with("/monitor.log")), "{files:?}");
    for file in &files {
        let text = std::fs::read_to_string(dir.join(file)).expect(file);
        assert!(!text.contains("canary-of-the"), "{file} has a secret");
        if file.starts_with("interval/0000/jobs") {
            assert!(text.contains("told"), "{text}");
        }
    }
    // As one file.
    let output = Command::new(drover())
        .args([&short[..], &["-node-id", "here", "-server-id", "leader"]].concat())
        .env("DROVER_ADDR", agent.address())
        .current_dir(place.path())
        .output()
        .expect("runs");
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let archive = said.trim().rsplit(' ').next().expect("a name").to_owned();
    assert!(archive.ends_with(".tar.gz"), "{said}");
    let listed = Command::new("tar").arg("tzf").arg(place.path().join(&archive)).output().expect("tar");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("/index.json") && listed.contains("/server/leader/monitor.log"), "{listed}");
    assert!(!place.path().join(archive.trim_end_matches(".tar.gz")).exists(), "only the archive stays");
    let mut found = Vec::new();
    open_to_others(place.path(), &mut found);
    assert!(found.is_empty(), "others can open {found:?}");
    // What cannot be captured is told, and the rest is kept.
    let output = agent.cli(&[&short[..], &["-output", &out, "-server-id", "nobody"]].concat());
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("server/nobody/monitor.log"), "{output:?}");
    for wrong in [["-duration", "0s"], ["-interval", "10m"]] {
        let output = agent.cli(&["operator", "debug", "-output", &out, wrong[0], wrong[1]]);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
}
