//! The driver `docker_remote`: a server and two nodes manage a container of an engine elsewhere, over TLS; nodes come
//! and go, the container stays.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Agent, Role, SHORT_LEASE},
    docker_jobs::COUNTER,
    dockerd::{self, Daemon, IMAGE},
    job::Job,
    remote::{self, allocation, running},
};
use crate::{
    local::{BOUND, free_ports, kill, until},
    packages::Wanted,
    process::Run,
};

/// A volume of the engine.
const VOLUME: &str = "kept-data";
/// Directory whose files the nodes offer to jobs.
const OFFERED: &str = "offered";

/// The check.
pub(crate) fn check() -> Result<()> {
    let wanted = [
        Wanted::new("openssl", "openssl"),
        Wanted::new("/usr/sbin/sshd", "openssh-server"),
        Wanted::new("ssh", "openssh-client"),
    ];
    dockerd::need(&wanted)?;
    let [port] = free_ports()?;
    let mut daemon = Daemon::new(8)?;
    let tls = daemon.dir().join("tls");
    certificates(&tls, "127.0.0.1")?;
    let file = |name: &str| tls.join(name).display().to_string();
    daemon.listen_also(&[
        format!("--host=tcp://127.0.0.1:{port}"),
        "--tlsverify".into(),
        format!("--tlscacert={}", file("ca.pem")),
        format!("--tlscert={}", file("server.pem")),
        format!("--tlskey={}", file("server.key")),
    ]);
    daemon.up()?;
    daemon.import_image()?;
    let offered = daemon.dir().join(OFFERED);
    fs::create_dir_all(&offered)?;
    fs::write(offered.join("file"), "fetched\n")?;
    let plugin = |cert: &str| {
        format!(
            "client {{\n  artifact {{\n    filesystem_isolation_extra_paths = [\"d:r:{}\"]\n  \
                }}\n}}\nplugin \"docker_remote\" {{\n  config {{\n    endpoint = \"tcp://127.0.0.1:{port}\"\n    tls \
                {{\n      ca = {:?}\n      cert = {:?}\n      \
             key = {:?}\n    }}\n  }}\n}}",
            offered.display(),
            file("ca.pem"),
            file(&format!("{cert}.pem")),
            file(&format!("{cert}.key")),
        )
    };
    let server = Agent::start_as("docker-server", Role::Server, &[], SHORT_LEASE)?;
    let mut nodes = vec![Agent::start_as("docker-n1", Role::Node(&server), &[], &plugin("client"))?];
    let result = story(&server, &mut nodes, &mut daemon, &plugin);
    let tails: Vec<String> = [&server].into_iter().chain(&nodes).map(Agent::log_tail).collect();
    result
        .with_context(|| format!("the ends of the agents' logs:\n{}\n{}", tails.join("\n--\n"), daemon.log_tail()))?;
    drop((nodes, server));
    daemon.end()?;
    Ok(())
}

/// An authority, a certificate for the engine at this address, one for nodes, and one of a stranger.
pub(crate) fn certificates(dir: &Path, address: &str) -> Result<()> {
    fs::create_dir_all(dir)?;
    let openssl = |args: &str| Run::new("openssl", args.split(' ')).dir(dir).quiet().run();
    let own = |name: &str| {
        openssl(&format!(
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={name} -keyout {name}.key \
                -out {name}.pem"
        ))
    };
    own("ca")?;
    own("stranger")?;
    fs::write(dir.join("ext"), format!("subjectAltName=IP:{address}\n"))?;
    for name in ["server", "client"] {
        openssl(&format!(
            "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
        ))?;
        openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.pem"
        ))?;
    }
    Ok(())
}

fn story(server: &Agent, nodes: &mut Vec<Agent>, daemon: &mut Daemon, plugin: &dyn Fn(&str) -> String) -> Result<()> {
    server.until_healthy(&["docker_remote"], 1)?;
    no_volume(server)?;
    daemon.docker(&["volume", "create", VOLUME])?;
    server.submit(&job(&daemon.dir().join(OFFERED).join("file")))?;
    let first = until("a running instance", BOUND, || running(server))?;
    let container = daemon.one()?;
    ensure!(
        first["ProviderId"] == container.as_str() || first.to_string().contains(&container),
        "the record does not name container {container}: {first}"
    );
    let alloc = allocation(server)?;
    remote::counts(server, &alloc)?;
    server.until_memory(&alloc)?;
    remote::signal(server, &alloc, "SIGUSR1")?;
    until("the signal's echo", BOUND, || Ok(server.output(&alloc, "stdout")?.contains("got-usr1").then_some(())))?;
    let said = remote::exec(server, &alloc, &["/bin/sh", "-c", "echo out; exit 5"])?;
    ensure!((said.0, said.1.as_str()) == (5, "out\n"), "exec answered {said:?}");

    // What travels with the create, and what the engine had before it.
    let said = remote::exec(server, &alloc, &["/bin/sh", "-c", "cat /local/in/file; echo kept > /data/file"])?;
    ensure!((said.0, said.1.as_str()) == (0, "fetched\n"), "the artifact in the container: {said:?}");
    let mounted =
        daemon.docker(&["inspect", "-f", "{{range .Mounts}}{{.Name}}:{{.Destination}} {{end}}", &container])?;
    ensure!(mounted.contains(&format!("{VOLUME}:/data ")), "volume {VOLUME} is not mounted: {mounted}");

    // A drain with room.
    nodes.push(Agent::start_as("docker-n2", Role::Node(server), &[], &plugin("client"))?);
    server.until_healthy(&["docker_remote"], 2)?;
    let manager = remote::manager(server)?;
    server.drain(&manager, json!({"Deadline": 60_000_000_000_i64}))?;
    remote::until_moved(server, &manager, "the drain")?;
    same(server, daemon, &container, "the drain")?;
    server.drain(&manager, Value::Null)?;

    // kill -9 of the manager with everything that belongs to it.
    let manager = remote::manager(server)?;
    let at = nodes.iter().position(|n| n.name() == manager).context("no agent of ours is the manager")?;
    drop(nodes.remove(at));
    remote::until_moved(server, &manager, "kill -9")?;
    same(server, daemon, &container, "kill -9 of its node")?;

    // The engine goes and comes back: nothing is concluded from its silence.
    daemon.crash()?;
    until("a driver that says that the engine is away", BOUND, || {
        Ok((server.healthy(&["docker_remote"])? == 0).then_some(()))
    })?;
    daemon.up()?;
    until("a healthy driver with its engine", BOUND, || Ok((server.healthy(&["docker_remote"])? >= 1).then_some(())))?;
    same(server, daemon, &container, "kill -9 of the engine")?;

    // A stranger's certificate.
    nodes.push(Agent::start_as("docker-n3", Role::Node(server), &[], &plugin("stranger"))?);
    until("the reason why a stranger is refused", BOUND, || {
        let text = server.get("/v1/nodes")?.to_string();
        Ok(text.to_lowercase().contains("certificate").then_some(()))
    })?;

    over_ssh(server, nodes, daemon)?;

    server.delete("/v1/job/far")?;
    daemon.until_empty()?;
    let kept = daemon.docker(&["volume", "ls", "-q"])?;
    ensure!(kept.lines().any(|name| name == VOLUME), "the volume went with the container: {kept}");
    server.until_no_record()
}

/// A node that reaches the same engine through a real sshd; a key that the host does not know is refused with the
/// reason.
fn over_ssh(server: &Agent, nodes: &mut Vec<Agent>, daemon: &Daemon) -> Result<()> {
    let dir = daemon.dir().join("ssh");
    fs::create_dir_all(&dir)?;
    let [port] = free_ports()?;
    let path = |name: &str| dir.join(name).display().to_string();
    for key in ["host", "node", "stranger"] {
        Run::new("ssh-keygen", ["-q", "-t", "ed25519", "-N", "", "-f", &path(key)]).run()?;
    }
    fs::copy(dir.join("node.pub"), dir.join("authorized"))?;
    let host_key = fs::read_to_string(dir.join("host.pub"))?;
    fs::write(dir.join("known"), format!("[127.0.0.1]:{port} {host_key}"))?;
    let daemon_config = format!(
        "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nPidFile {}\nStrictModes no\nUsePAM \
            no\nPermitRootLogin yes\n",
        path("host"),
        path("authorized"),
        path("pid"),
    );
    fs::write(dir.join("sshd_config"), daemon_config)?;
    fs::create_dir_all("/run/sshd")?;
    let log = fs::File::create(dir.join("log"))?;
    let mut sshd = std::process::Command::new("/usr/sbin/sshd")
        .args(["-D", "-e", "-f", &path("sshd_config")])
        .stdin(std::process::Stdio::null())
        .stderr(log)
        .spawn()
        .context("could not start sshd")?;
    let outcome = (|| {
        for (name, key) in [("docker-n4", "node"), ("docker-n5", "stranger")] {
            let config = format!(
                "Host *\n  IdentityFile {}\n  IdentitiesOnly yes\n  UserKnownHostsFile {}\n",
                path(key),
                path("known")
            );
            fs::write(dir.join(format!("{key}.conf")), config)?;
            let endpoint = format!("ssh://root@127.0.0.1:{port}{}", daemon.url().trim_start_matches("unix://"));
            let plugin = format!(
                "plugin \"docker_remote\" {{\n  config {{\n    endpoint = {endpoint:?}\n    ssh_config = \
                    {:?}\n  }}\n}}",
                path(&format!("{key}.conf"))
            );
            nodes.push(Agent::start_as(name, Role::Node(server), &[], &plugin)?);
        }
        let driver = |name: &str| -> Result<Value> { Ok(server.node(name)?["Drivers"]["docker_remote"].take()) };
        until("a healthy driver over ssh", BOUND, || Ok((driver("docker-n4")?["Healthy"] == true).then_some(())))?;
        until("the reason why a stranger's key is refused", BOUND, || {
            let why = driver("docker-n5")?["HealthDescription"].as_str().unwrap_or_default().to_owned();
            Ok(why.contains("Permission denied").then_some(()))
        })?;
        // A killed plugin takes its tunnel along.
        let marker = path("node.conf");
        let first = processes_with(&marker)?;
        ensure!(!first.is_empty(), "no ssh process is found");
        let node = nodes.iter().find(|n| n.name() == "docker-n4").context("the node")?;
        node.pids(|command| command.ends_with("driver docker_remote")).into_iter().try_for_each(kill)?;
        until("a tunnel of the next plugin alone", BOUND, || {
            let now = processes_with(&marker)?;
            Ok((!now.is_empty() && now.iter().all(|pid| !first.contains(pid))).then_some(()))
        })?;
        nodes.retain(|n| !["docker-n4", "docker-n5"].contains(&n.name()));
        until("the end of the tunnel", BOUND, || Ok(processes_with(&marker)?.is_empty().then_some(())))
    })();
    drop(sshd.kill());
    drop(sshd.wait());
    outcome
}

/// Processes that have a word among their arguments.
fn processes_with(word: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.split(|b| *b == 0).any(|arg| arg == word.as_bytes()) {
            found.extend(entry.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok()));
        }
    }
    Ok(found)
}

/// The instance is the same, and its log goes on without a gap.
fn same(server: &Agent, daemon: &Daemon, container: &str, after: &str) -> Result<()> {
    remote::counts_after(server, after)?;
    ensure!(daemon.one()? == container, "another container after {after}");
    Ok(())
}

/// A name that the engine does not know is refused with the reason, and no empty volume is made.
fn no_volume(server: &Agent) -> Result<()> {
    let mut job = job(Path::new("/nowhere"));
    (job["Job"]["ID"], job["Job"]["Name"]) = ("without".into(), "without".into());
    job["Job"]["TaskGroups"][0]["Tasks"][0]["Artifacts"] = json!([]);
    server.put("/v1/jobs", &job)?;
    until("the reason why a volume is refused", BOUND, || {
        let allocs = server.get("/v1/job/without/allocations")?.to_string();
        Ok(allocs.contains(&format!("the engine has no volume \\\"{VOLUME}\\\"")).then_some(()))
    })?;
    server.delete("/v1/job/without")?;
    server.until_no_record()
}

fn job(artifact: &Path) -> Value {
    let config = json!({"image": IMAGE, "command": "/bin/sh", "args": ["-c", COUNTER], "init": true});
    let task = json!({
        "KillTimeout": 1_000_000_000_i64, "VolumeMounts": [{"Volume": "v", "Destination": "/data"}],
        "Artifacts": [{"GetterSource": artifact, "RelativeDest": "local/in/"}],
    });
    let volumes = json!({"Volumes": {"v": {"Type": "host", "Source": VOLUME}}});
    Job::new("far", "service", "docker_remote", config).undeployed().group(volumes).task(task).body()
}
