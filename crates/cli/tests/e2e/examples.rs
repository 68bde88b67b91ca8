//! Every example runs, as its comments say.

use std::{fs, process::Command};

use serde_json::{Value, json};

use crate::agent::{Agent, drover, example, until};

/// `drover job run` follows the work until it is healthy: its exit code is the proof.
fn run(agent: &Agent, file: &str) -> String {
    agent.cli_ok(&["job", "run", &example(file).display().to_string()])
}

#[test]
fn all_job_examples_run() {
    let agent = Agent::start("");

    let text = run(&agent, "hello.nomad.hcl");
    assert!(text.contains("is successful"), "{text}");
    let hello = agent.alloc("hello", "running");
    until("what hello says", || agent.logs(&hello, "greet").contains("Hello from greet on ").then_some(()));

    run(&agent, "batch.nomad.hcl");
    until("three complete workers", || {
        (agent.allocs("batch").iter().filter(|a| a["ClientStatus"] == "complete").count() == 3).then_some(())
    });
    let mut said: Vec<String> = agent.allocs("batch").iter().map(|a| agent.logs(a, "work")).collect();
    said.sort();
    assert_eq!(said, ["worker 0: 1 4 9\n", "worker 1: 1 4 9\n", "worker 2: 1 4 9\n"]);

    let text = run(&agent, "lifecycle.nomad.hcl");
    assert!(text.contains("is successful"), "{text}");
    let alloc = agent.alloc("lifecycle", "running");
    until("the main task's log", || {
        let text = agent.logs(&alloc, "serve");
        (text.contains("prepared by ") && text.contains("serving on ")).then_some(())
    });

    run(&agent, "template.nomad.hcl");
    let rendered = agent.alloc("template", "complete");
    let text =
        "# template of show\nserver ONE port 8001 primary\nserver TWO port 8002\nbody { width: 960px }\ncolour green\n";
    until("the rendered files", || (agent.logs(&rendered, "show") == text).then_some(()));

    let text = run(&agent, "services.nomad.hcl");
    assert!(text.contains("is successful"), "{text}");
    assert!(agent.cli_ok(&["service", "info", "greeter"]).lines().count() == 3, "a heading and two places");

    run(&agent, "remote-counter.nomad.hcl");
    let counter = agent.alloc("counter", "running");
    until("the counter's log", || agent.logs(&counter, "count").starts_with("1\n2\n3\n").then_some(()));

    let text = fs::read_to_string(example("batch.json")).expect("the example");
    let body: Value = serde_json::from_str(&text).expect("JSON");
    agent.put("/v1/jobs", &body);
    let said = agent.alloc("json-batch", "complete");
    assert_eq!(agent.logs(&said, "say"), "said by a job in JSON\n");

    // Needs hosts that ssh reaches: what can be known without them is checked here, the rest is `cargo xtask interop
    // ssh`.
    agent.cli_ok(&["job", "validate", &example("remote-ssh.nomad.hcl").display().to_string()]);
    agent.cli_ok(&["job", "validate", &example("remote-ecs.nomad.hcl").display().to_string()]);
    agent.cli_ok(&["job", "validate", &example("remote-batch.nomad.hcl").display().to_string()]);
    agent.cli_ok(&["job", "validate", &example("remote-slurm.nomad.hcl").display().to_string()]);
    agent.cli_ok(&["job", "validate", &example("remote-htcondor.nomad.hcl").display().to_string()]);
    agent.cli_ok(&["job", "validate", &example("remote-kubernetes.nomad.hcl").display().to_string()]);

    // What was started ends when it is stopped, remote instance included.
    for job in ["hello", "lifecycle", "services", "counter"] {
        agent.cli_ok(&["job", "stop", job]);
    }
    until("no workload left", || {
        agent.processes().values().all(|c| !c.starts_with("/bin/sh") && !c.starts_with("sleep")).then_some(())
    });
    until("no executor left", || agent.executors().is_empty().then_some(()));
}

#[test]
fn variables_change_the_job() {
    let agent = Agent::start("");
    agent.cli_ok(&["job", "run", "-var", "greeting=Servus", &example("hello.nomad.hcl").display().to_string()]);
    let hello = agent.alloc("hello", "running");
    until("the greeting", || agent.logs(&hello, "greet").contains("Servus from greet").then_some(()));
    let out = agent.cli(&["job", "run", "-var", "greeting=", &example("hello.nomad.hcl").display().to_string()]);
    let error = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && error.contains("The greeting must not be empty"), "{error}");
}

#[test]
fn a_changed_job_is_rolled_out_and_an_unchanged_one_is_not() {
    let agent = Agent::start("");
    run(&agent, "lifecycle.nomad.hcl");
    let before: Vec<Value> = agent.allocs("lifecycle");
    let index = agent.get("/v1/job/lifecycle").expect("the job")["Version"].clone();
    run(&agent, "lifecycle.nomad.hcl");
    assert_eq!(agent.get("/v1/job/lifecycle").expect("the job")["Version"], index, "the same job keeps its version");
    assert_eq!(agent.allocs("lifecycle").len(), before.len());

    let mut job = agent.get("/v1/job/lifecycle").expect("the job");
    job["TaskGroups"][0]["Tasks"][2]["Env"] = json!({"CHANGED": "yes"});
    agent.put("/v1/jobs", &json!({"Job": job}));
    until("two healthy allocations of version 1", || {
        let new = agent
            .allocs("lifecycle")
            .into_iter()
            .filter(|a| a["JobVersion"] == 1 && a["ClientStatus"] == "running")
            .count();
        let old = agent
            .allocs("lifecycle")
            .into_iter()
            .filter(|a| a["JobVersion"] == 0 && a["ClientStatus"] == "running")
            .count();
        (new == 2 && old == 0).then_some(())
    });
    until("a successful deployment", || {
        (agent.get("/v1/job/lifecycle/deployment")?["Status"] == "successful").then_some(())
    });
}

#[test]
fn agent_examples_start() {
    // Their directories and ports are those of a real installation: here they are others, everything else is as it is
    // written.
    let rpc = testkit::free_port().to_string();
    let started = |file: &str, secret: Option<&std::path::Path>| {
        let text = fs::read_to_string(example(file)).expect("the example");
        let local = |dir: &std::path::Path| {
            fs::create_dir(dir.join("plugins")).expect("a plugin directory");
            let text = text.replace("/opt/drover/plugins", &dir.join("plugins").display().to_string());
            let kept = secret.map_or_else(String::new, |path| path.display().to_string());
            let text = text.replace("/var/lib/drover/server/server/join-secret", &kept);
            text.replace("/var/lib/drover", &dir.display().to_string())
                .replace("127.0.0.1:4647", &format!("127.0.0.1:{rpc}"))
        };
        let agent = Agent::of_file(local, &["-http-port", "0", "-rpc-port", &rpc, "-node", file]);
        assert!(!agent.log().contains("has no meaning here"), "{file}: {}", agent.log());
        agent
    };
    let server = started("agents/server.hcl", None);
    let secret = server.dir().join("server/server/join-secret");
    if !secret.exists() {
        fs::create_dir_all(server.dir().join("server/server")).expect("a directory");
        fs::write(&secret, "of-the-tests").expect("what all agents of a test have in common");
    }
    let remote = ["ssh", "ecs", "batch", "slurm", "htcondor", "kubernetes"];
    let remote = remote.map(|kind| format!("agents/client-{kind}.hcl"));
    for file in ["agents/client.hcl"].into_iter().chain(remote.iter().map(String::as_str)) {
        let _node = started(file, Some(&secret));
        until(&format!("the node of {file}"), || {
            let nodes = server.get("/v1/nodes")?;
            // Only the one that says so has it.
            let local = file == "agents/client.hcl";
            let told = |n: &Value| n["Drivers"]["raw_exec"]["Healthy"] == local && n["Drivers"]["exec"].is_object();
            nodes.as_array()?.iter().find(|n| n["Name"] == file && n["Status"] == "ready" && told(n)).map(drop)
        });
    }
}

/// A file of the manifest's ConfigMap, without its indentation.
fn of_manifest(manifest: &str, file: &str) -> String {
    let begin = format!("  {file}: |\n");
    let (_, rest) = manifest.split_once(&begin).expect("the file");
    let lines = rest.lines().take_while(|line| line.is_empty() || line.starts_with("    "));
    lines.map(|line| format!("{}\n", line.get(4..).unwrap_or_default())).collect()
}

#[test]
fn the_agents_of_the_manifest_have_valid_configurations() {
    let manifest = fs::read_to_string(example("kubernetes/drover.yaml")).expect("the example");
    let dir = tempfile::tempdir().expect("a directory");
    // The secret of the guide.
    for args in [&["ca", "create"][..], &["cert", "create", "-server"], &["cert", "create", "-client"]] {
        let made = Command::new(drover()).arg("tls").args(args).current_dir(&dir).output().expect("runs");
        assert!(made.status.success(), "{args:?}: {}", String::from_utf8_lossy(&made.stderr));
    }
    for (role, file) in [("server", "server.hcl"), ("client", "node.hcl")] {
        let text = of_manifest(&manifest, file).replace("/etc/drover/tls", &dir.path().display().to_string());
        assert!(text.contains(&format!("global-{role}-nomad-key.pem")), "{text}");
        let path = dir.path().join(file);
        fs::write(&path, text).expect("written");
        let told = Command::new(drover()).args(["config", "validate"]).arg(&path).output().expect("runs");
        assert!(told.status.success(), "{file}: {}", String::from_utf8_lossy(&told.stderr));
    }
}
