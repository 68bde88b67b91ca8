//! Secrets of a whole cluster, planted and then looked for in all that the cluster shows, logs, writes and starts.

use std::{
    collections::BTreeMap,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread::{self, JoinHandle},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use oidc_fake::Provider;
use serde_json::{Value, json};
use testkit::{Dir, processes_of};

use crate::{
    acl_commands::{Secured, field},
    agent::{printed, until},
};

const VARIABLE: &str = "canary-of-the-variable-8f21";
const OF_CLIENT: &str = "canary-of-the-oidc-client-77b0";
/// The join secret, which tests give to agents by their environment.
const JOIN: &str = "of-the-tests";

const CONFIG: &str = r#"
log_level = "trace"
client {
  enabled = true
}
plugin "raw_exec" {
  config {
    enabled = true
  }
}
plugin "remote_exec" {
  config {
    transport = "local"
    root      = "RUNTIME"
  }
}
audit {
  enabled = true
}
telemetry {
  prometheus_metrics = true
}
"#;

const RULES: &str = r#"
namespace "default" {
  policy = "write"
  variables {
    path "*" {
      capabilities = ["read", "list"]
    }
  }
}
"#;

const JOB: &str = r#"job "kept" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sleep"
        args    = ["71012"]
      }
      identity {
        env  = true
        file = true
      }
      template {
        data        = "SECRET={{ with nomadVar \"nomad/jobs/kept\" }}{{ .password }}{{ end }}"
        destination = "secrets/app.env"
        env         = true
      }
    }
  }
  group "far" {
    task "t" {
      driver = "remote_exec"
      config {
        command = "/bin/sleep"
        args    = ["71013"]
      }
      identity {
        file = true
      }
      template {
        data        = "SECRET={{ with nomadVar \"nomad/jobs/kept\" }}{{ .password }}{{ end }}"
        destination = "secrets/app.env"
        env         = true
        change_mode = "noop"
      }
    }
  }
}
"#;

/// Secrets by what they are, and what has been shown by where it came from.
#[derive(Default)]
struct Search {
    secrets: BTreeMap<&'static str, String>,
    shown: BTreeMap<String, Vec<u8>>,
}

impl Search {
    fn plant(&mut self, what: &'static str, secret: impl Into<String>) {
        let secret = secret.into();
        assert!(secret.len() >= 12, "{what} is no canary: {} bytes", secret.len());
        self.secrets.insert(what, secret);
    }

    fn collect(&mut self, place: impl Into<String>, text: impl Into<Vec<u8>>) {
        self.shown.entry(place.into()).or_default().extend(text.into());
    }

    /// Each secret that was shown, as it is or in base64, and where.
    fn found(&self) -> Vec<String> {
        let holds = |text: &[u8], secret: &[u8]| text.windows(secret.len()).any(|part| part == secret);
        let mut found = Vec::new();
        for (what, secret) in &self.secrets {
            // Without its end, which depends on what follows.
            let encoded = BASE64_STANDARD.encode(&secret.as_bytes()[..secret.len() / 3 * 3]);
            for (place, text) in &self.shown {
                if holds(text, secret.as_bytes()) || holds(text, encoded.as_bytes()) {
                    found.push(format!("{what} in {place}"));
                }
            }
        }
        found
    }
}

/// Reads the events until the agent ends.
fn events(host: &str, token: &str) -> JoinHandle<Vec<u8>> {
    let mut stream = TcpStream::connect(host).expect("connects");
    let request = format!("GET /v1/event/stream?topic=* HTTP/1.1\r\nHost: {host}\r\nX-Nomad-Token: {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("asks");
    thread::spawn(move || {
        let mut all = Vec::new();
        // It ends with the agent, which may be in the middle of a line.
        let _ = stream.read_to_end(&mut all);
        all
    })
}

/// The command that follows the log, which writes into a file.
fn monitor(secured: &Secured) -> (Child, PathBuf) {
    let path = secured.agent.dir().join("monitor.out");
    let mut command = secured.command(&secured.root, &["monitor", "-log-level", "trace"]);
    let out = fs::File::create(&path).expect("a file");
    let child = command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).spawn().expect("drover");
    (child, path)
}

/// The secret of the node, which only its records and the servers' state have.
fn node_secret(data: &Path) -> String {
    let is_id = |text: &[u8]| text.iter().all(|byte| byte.is_ascii_hexdigit() || *byte == b'-');
    let of_file = |path: &PathBuf| {
        let bytes = fs::read(path).ok()?;
        let name = b"secret_id";
        let at = bytes.windows(name.len()).position(|part| part == name)? + name.len();
        bytes[at..].windows(36).take(16).find(|part| is_id(part)).map(|id| String::from_utf8_lossy(id).into_owned())
    };
    files(data).iter().find_map(of_file).expect("the node's secret")
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(files(&entry.path())),
            Ok(kind) if kind.is_file() => all.push(entry.path()),
            _ => {}
        }
    }
    all
}

/// Whether users that do not own it may read it where it lies.
fn open_to_others(path: &Path, below: &Path) -> bool {
    let mode = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.permissions().mode());
    let passable = path.ancestors().skip(1).take_while(|dir| dir.starts_with(below)).all(|dir| mode(dir) & 0o001 != 0);
    mode(path) & 0o004 != 0 && passable
}

#[test]
fn no_secret_is_shown_logged_or_left_where_others_read_it() {
    let runtime = Dir::new("canaries");
    let secured = Secured::with(&CONFIG.replace("RUNTIME", runtime.path().to_str().expect("text")));
    let (root, agent) = (secured.root.clone(), &secured.agent);
    let host = agent.address().trim_start_matches("http://").to_owned();
    let stream = events(&host, &root);
    let (mut monitor, monitored) = monitor(&secured);
    let mut search = Search::default();
    search.plant("the first token", &root);
    search.plant("the join secret", JOIN);
    search.plant("a variable", VARIABLE);
    search.plant("the secret of an OIDC client", OF_CLIENT);
    let ask = |token: &str, method: &str, path: &str, body: &Value| {
        let answer = agent.ask(method, path, &[("X-Nomad-Token", token)], &body.to_string()).expect("an answer");
        assert!(answer.status < 500, "{method} {path}: {}", answer.short());
        (answer.status, answer.body)
    };
    let written = |path: &str, body: &Value| {
        let (status, text) = ask(&root, "PUT", path, body);
        assert_eq!(status, 200, "PUT {path}: {text}");
        serde_json::from_str::<Value>(&text).unwrap_or_default()
    };
    let text = |value: &Value| value.as_str().expect("text").to_owned();

    // Plant. What makes a secret has it in its answer, and that is the one place for it.
    let rules = secured.file("write.policy.hcl", RULES);
    secured.ok(&root, &["acl", "policy", "apply", "write", &rules]);
    let made = secured.ok(&root, &["acl", "token", "create", "-name", "ci", "-policy", "write"]);
    let client = field(&made, "Secret ID");
    search.plant("a client token", &client);
    search.plant(
        "a one-time token",
        text(&written("/v1/acl/token/onetime", &json!({}))["OneTimeToken"]["OneTimeSecretID"]),
    );
    written("/v1/var/nomad/jobs/kept", &json!({"Path": "nomad/jobs/kept", "Items": {"password": VARIABLE}}));
    let lock =
        written("/v1/var/lock?lock-acquire", &json!({"Path": "lock", "Items": {"a": "b"}, "Lock": {"TTL": "30m"}}));
    search.plant("the ID of a lock", text(&lock["Lock"]["ID"]));
    search.plant("an introduction", secured.ok(&root, &["node", "intro", "create", "-t", "{{.JWT}}"]).trim());
    let threads = tokio::runtime::Runtime::new().expect("a runtime");
    let provider = threads.block_on(Provider::start());
    let oidc = json!({"Name": "people", "Type": "OIDC", "MaxTokenTTL": "1h", "TokenLocality": "local", "Config": {
        "OIDCDiscoveryURL": provider.url, "OIDCClientID": "drover", "OIDCClientSecret": OF_CLIENT,
        "BoundAudiences": ["drover"], "AllowedRedirectURIs": ["http://127.0.0.1:4649/oidc/callback"],
        "VerboseLogging": true}});
    written("/v1/acl/auth-method/people", &oidc);
    let ci = json!({"Name": "ci", "Type": "JWT", "MaxTokenTTL": "1h", "TokenLocality": "local", "Config": {
        "JWKSURL": format!("{}/keys", provider.url), "BoundAudiences": ["drover"], "BoundIssuer": [provider.url],
        "ClaimMappings": {"sub": "user"}, "VerboseLogging": true}});
    written("/v1/acl/auth-method/ci", &ci);
    written("/v1/acl/binding-rule", &json!({"AuthMethod": "ci", "BindType": "policy", "BindName": "write"}));
    let now = oidc_fake::now();
    let claims = json!({"iss": provider.url, "aud": "drover", "sub": "ann", "iat": now, "exp": now + 60});
    let jwt = provider.sign(&claims);
    search.plant("a token of the provider", &jwt);
    let login = json!({"AuthMethodName": "ci", "LoginToken": jwt});
    search.plant("a token of a login", text(&written("/v1/acl/login", &login)["SecretID"]));
    let refused = format!("{jwt}x");
    search.plant("a refused token of the provider", refused.rsplit('.').next().expect("a part"));
    let (status, said) = ask("", "PUT", "/v1/acl/login", &json!({"AuthMethodName": "ci", "LoginToken": refused}));
    assert_ne!(status, 200);
    search.collect("the refusal of a login", said);
    let wrong = "0badc0de-1111-4222-8333-444455556666";
    search.plant("a token that nobody has", wrong);
    search.collect("the refusal of a token", ask(wrong, "GET", "/v1/jobs", &Value::Null).1);
    let job = secured.file("kept.nomad.hcl", JOB);
    secured.ok(&client, &["job", "run", "-detach", &job]);
    let alloc = until("the task", || {
        let allocs: Value =
            serde_json::from_str(&ask(&root, "GET", "/v1/job/kept/allocations", &Value::Null).1).ok()?;
        let running =
            |group| allocs.as_array()?.iter().find(|a| a["TaskGroup"] == group && a["ClientStatus"] == "running");
        running("far").and(running("g")).cloned()
    });
    let id = text(&alloc["ID"]);
    let dir = agent.dir().join("data/alloc").join(&id).join("t/secrets");
    let identity = fs::read_to_string(dir.join("nomad_token")).expect("the task's identity");
    search.plant("the identity of a task", identity.trim().rsplit('.').next().expect("its signature"));
    assert!(fs::read_to_string(dir.join("app.env")).expect("the template").contains(VARIABLE), "the task has it");
    search.plant("the secret of the node", node_secret(&agent.dir().join("data/client")));
    for entry in fs::read_dir(agent.dir().join("data/server/keystore")).expect("lists") {
        let key: Value =
            serde_json::from_slice(&fs::read(entry.expect("an entry").path()).expect("reads")).expect("JSON");
        search.plant("the private key of a root key", text(&key["PrivateKey"]));
        search.plant("the data key of a root key", text(&key["DataKey"]));
    }
    ask(&root, "PUT", "/v1/operator/keyring/rotate?full", &json!({}));

    // Ask for all that there is, also as it is shown to people.
    let node = text(&alloc["NodeID"]);
    let eval = text(&alloc["EvalID"]);
    for path in [
        "/v1/jobs?meta=true".to_owned(),
        "/v1/job/kept".to_owned(),
        "/v1/job/kept/versions?diffs=true".to_owned(),
        "/v1/job/kept/submission?version=0".to_owned(),
        "/v1/job/kept/evaluations".to_owned(),
        "/v1/job/kept/deployments".to_owned(),
        "/v1/job/kept/summary".to_owned(),
        "/v1/allocations?resources=true&task_states=true".to_owned(),
        format!("/v1/allocation/{id}"),
        format!("/v1/allocation/{id}/checks"),
        format!("/v1/client/allocation/{id}/stats"),
        format!("/v1/client/fs/ls/{id}?path=t"),
        "/v1/evaluations".to_owned(),
        format!("/v1/evaluation/{eval}"),
        "/v1/deployments".to_owned(),
        "/v1/nodes?resources=true&os=true".to_owned(),
        format!("/v1/node/{node}"),
        format!("/v1/node/{node}/allocations"),
        format!("/v1/client/stats?node_id={node}"),
        "/v1/node/pools".to_owned(),
        "/v1/namespaces".to_owned(),
        "/v1/services".to_owned(),
        "/v1/acl/policies".to_owned(),
        "/v1/acl/tokens".to_owned(),
        "/v1/acl/roles".to_owned(),
        "/v1/acl/auth-methods".to_owned(),
        "/v1/acl/auth-method/people".to_owned(),
        "/v1/acl/binding-rules".to_owned(),
        "/v1/agent/self".to_owned(),
        "/v1/agent/members".to_owned(),
        "/v1/agent/health".to_owned(),
        "/v1/metrics".to_owned(),
        "/v1/metrics?format=prometheus".to_owned(),
        "/v1/operator/keyring/keys".to_owned(),
        "/v1/operator/scheduler/configuration".to_owned(),
        "/v1/operator/autopilot/health".to_owned(),
        "/v1/operator/raft/configuration".to_owned(),
        "/v1/remote/tasks".to_owned(),
        "/v1/remote/unbound".to_owned(),
        "/v1/status/leader".to_owned(),
        "/.well-known/jwks.json".to_owned(),
    ] {
        let (status, text) = ask(&root, "GET", &path, &Value::Null);
        assert_eq!(status, 200, "GET {path} shows nothing: {text}");
        search.collect(format!("GET {path}"), text);
    }
    // Management tokens see who holds a lock, as with a stock server; others do not.
    search.collect("GET /v1/vars", ask(&client, "GET", "/v1/vars", &Value::Null).1);
    search.collect("GET /v1/var/lock", ask(&client, "GET", "/v1/var/lock", &Value::Null).1);
    search.collect("drover var list", secured.ok(&client, &["var", "list"]));
    for (path, body) in [
        ("/v1/search", json!({"Prefix": "", "Context": "all"})),
        ("/v1/search/fuzzy", json!({"Text": "can", "Context": "all"})),
        ("/v1/acl/explain", json!({"Method": "GET", "Path": "/v1/var/nomad/jobs/kept", "Token": client})),
    ] {
        search.collect(format!("PUT {path}"), written(path, &body).to_string());
    }
    let snapshot = secured.agent.dir().join("snapshot");
    let snapshot = snapshot.to_str().expect("text");
    secured.ok(&root, &["operator", "snapshot", "save", snapshot]);
    for args in [
        &["job", "inspect", "kept"][..],
        &["job", "status", "-verbose", "kept"],
        &["job", "history", "-p", "-full", "kept"],
        &["job", "plan", "-verbose", &job],
        &["alloc", "status", "-verbose", &id],
        &["alloc", "status", "-json", &id],
        &["node", "status", "-verbose", &node],
        &["node", "status", "-json", &node],
        &["eval", "status", "-json", &eval],
        &["acl", "token", "list"],
        &["acl", "auth-method", "info", "people"],
        &["operator", "snapshot", "inspect", snapshot],
        &["operator", "snapshot", "state", snapshot],
        &["agent-info"],
        &["server", "members", "-verbose"],
    ] {
        let out = secured.run(&root, args);
        // A plan says by its status whether something would change.
        assert!(out.status.code().is_some_and(|code| code < 2), "{args:?}: {}", printed(&out));
        search.collect(format!("drover {}", args[..args.len().min(3)].join(" ")), printed(&out));
    }

    // What is started has it neither in its command line nor, except for the task, in its environment.
    let mut executors = 0;
    let far = processes_of(runtime.path());
    assert!(far.values().any(|line| line == "/bin/sleep 71013"), "the remote task was looked at: {far:?}");
    for (pid, line) in agent.processes().into_iter().chain(far) {
        search.collect(format!("the command line of {line}"), line.clone());
        // The task has its secrets there, and the agent what the operator gave it.
        if !line.starts_with("/bin/sleep") && pid != agent.pid() {
            executors += usize::from(line.contains("drover-executor"));
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            search.collect(format!("the environment of {line}"), environment);
        }
    }
    assert!(executors > 0, "the executor of the task was looked at");
    let audit = fs::read(agent.dir().join("data/audit/audit.log")).expect("the audit log");
    assert!(String::from_utf8_lossy(&audit).contains("/v1/acl/login"), "it is the right file");
    search.collect("the audit log", audit);
    for path in files(&agent.dir().join("data")) {
        if open_to_others(&path, agent.dir()) {
            search.collect(format!("the file {}", path.display()), fs::read(&path).unwrap_or_default());
        }
    }

    secured.ok(&root, &["job", "stop", "-detach", "kept"]);
    until("the end of the task", || {
        let alloc: Value =
            serde_json::from_str(&ask(&root, "GET", &format!("/v1/allocation/{id}"), &Value::Null).1).ok()?;
        (alloc["ClientStatus"] == "complete").then_some(())
    });
    let far = || processes_of(runtime.path()).values().any(|line| line == "/bin/sleep 71013");
    until("the end of the remote task", || (!far()).then_some(()));
    let log = agent.log();
    assert!(log.contains("TRACE") || log.contains("DEBUG"), "the log is a talkative one");
    search.collect("the log", log);
    drop(monitor.kill());
    drop(monitor.wait());
    let monitored = fs::read(monitored).expect("what it has printed");
    assert!(!monitored.is_empty(), "the monitor has printed something");
    search.collect("drover monitor", monitored);
    drop(secured);
    let streamed = stream.join().expect("no panic");
    assert!(String::from_utf8_lossy(&streamed).contains("JobRegistered"), "events came");
    search.collect("the event stream", streamed);
    let found = search.found();
    assert!(found.is_empty(), "secrets were shown:\n{}", found.join("\n"));
}
