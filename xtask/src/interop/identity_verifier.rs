//! Workload identities before relying parties in other languages: go-oidc and PyJWT find the keys by the issuer, over
//! https, accept the tokens of tasks, and refuse changed ones.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::{
    cluster::{Agent, Role},
    job::Job,
};
use crate::{
    local::{self, BOUND, free_ports, peers, until},
    packages::{self, Skip, Wanted},
    peer,
    process::Run,
    workspace,
};

/// PyJWT with what verifies signatures.
const PYJWT: &str = "pyjwt[crypto]==2.15.1";

/// Shows its tokens, again and again.
const SHOW: &str = "while true; do for f in \"$NOMAD_SECRETS_DIR\"/nomad_*.jwt; do echo \"$(basename $f) $(cat $f)\"; \
    done; sleep 0.3; done";

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_go()?;
    packages::need(&[Wanted::new("openssl", "openssl")])?;
    let python = python().map_err(|why| Skip::because(format!("PyJWT cannot be installed: {why:#}")))?;
    let go = peer::GO_VERIFIER.cached()?;
    let [port] = free_ports()?;
    let issuer = format!("https://127.0.0.1:{port}");
    let dir = Dir::new()?;
    let more = format!(
        "server {{\n  oidc_issuer = {issuer:?}\n}}\nplugin \"remote_exec\" {{\n  config {{\n    root = {:?}\n  \
            }}\n}}\n",
        dir.0.join("runtime")
    );
    let agent = Agent::start_as("identity-verifier", Role::Both, &[], &more)?;
    let result = story(&agent, &dir.0, &python, &go, &issuer, port);
    result.with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()))
}

/// A Python that has PyJWT.
fn python() -> Result<PathBuf> {
    let dir = peers()?.join(PYJWT.replace("[crypto]==", "-"));
    peer::cached(&dir, |out| {
        Run::new("python3", [Path::new("-m"), Path::new("venv"), out]).run()?;
        Run::new(out.join("bin/python"), ["-m", "pip", "install", "-q", PYJWT]).run_patiently()
    })?;
    Ok(dir.join("bin/python"))
}

/// A directory that goes with the check.
struct Dir(PathBuf);

impl Dir {
    fn new() -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-interop-verifiers-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        local::remove(&self.0);
    }
}

/// A process that ends with the check.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A relying party: a process that has discovered the issuer once.
struct Verifier {
    name: &'static str,
    _process: Ends,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Verifier {
    fn start(name: &'static str, command: &mut Command, certificate: &Path) -> Result<Self> {
        let command = command.env("SSL_CERT_FILE", certificate).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("could not start {name}"))?;
        let (questions, answers) = (child.stdin.take(), child.stdout.take());
        let process = Ends(child);
        let (Some(questions), Some(answers)) = (questions, answers) else { bail!("{name} has no pipes") };
        Ok(Self { name, _process: process, questions, answers: BufReader::new(answers) })
    }

    fn ask(&mut self, token: &str, audience: &str) -> Result<Value> {
        writeln!(self.questions, "{}", json!({"Token": token, "Audience": audience}))?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("{} answered {line:?}", self.name))
    }

    fn accepts(&mut self, token: &str, audience: &str) -> Result<Value> {
        let said = self.ask(token, audience)?;
        ensure!(said["Claims"].is_object(), "{} refuses a token for {audience}: {said}", self.name);
        Ok(said["Claims"].clone())
    }

    fn refuses(&mut self, what: &str, token: &str, audience: &str) -> Result<()> {
        let said = self.ask(token, audience)?;
        ensure!(said["Refused"].is_string(), "{} accepts {what}: {said}", self.name);
        Ok(())
    }
}

fn story(agent: &Agent, dir: &Path, python: &Path, go: &Path, issuer: &str, port: u16) -> Result<()> {
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|file| dir.join(file));
    Run::new(
        "openssl",
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=issuer -addext \
            subjectAltName=IP:127.0.0.1 -keyout key.pem -out certificate.pem"
            .split(' ')
            .filter(|word| !word.is_empty()),
    )
    .dir(dir)
    .quiet()
    .run()?;
    let script = |name: &str| workspace::root().join("xtask/interop/identity-verifier").join(name);
    let mut proxy = Command::new(python);
    proxy.arg(script("proxy.py")).args([&port.to_string(), &agent.address()]).args([&certificate, &key]);
    let log = fs::File::create(dir.join("proxy.log"))?;
    let _proxy = Ends(proxy.stdin(Stdio::null()).stderr(log).spawn().context("could not start the proxy")?);
    until("the proxy", BOUND, || Ok(std::net::TcpStream::connect(("127.0.0.1", port)).ok()))?;
    until("the agent's answer", BOUND, || Ok(agent.get("/.well-known/openid-configuration").ok()))?;

    agent.put_text(
        "/v1/namespace",
        &json!({"Name": "default", "RequiredExtraClaims": {"where": "${node.datacenter}/${job.id}"},
            "OptionalExtraClaims": {"team": "${job.meta.team}", "unused": "x"}}),
    )?;
    agent.until_healthy(&["raw_exec", "remote_exec"], 1)?;
    let mut verifiers = [
        Verifier::start("go-oidc", Command::new(go).arg(issuer), &certificate)?,
        Verifier::start("PyJWT", Command::new(python).arg(script("verify.py")).arg(issuer), &certificate)?,
    ];
    for (id, driver) in [("near", "raw_exec"), ("far", "remote_exec")] {
        let mut body = Job::script(id, "service", driver, SHOW).undeployed().task(identities()).body();
        body["Job"]["Meta"] = json!({"team": "blue"});
        agent.submit(&body)?;
    }

    let mut kept = Vec::new();
    for id in ["near", "far"] {
        let alloc = until("a running allocation", BOUND, || agent.alloc(id, "running"))?;
        for verifier in &mut verifiers {
            judge(agent, verifier, id, &alloc).with_context(|| format!("{} on a token of {id}", verifier.name))?;
        }
        let kid = |token: &str| header(token).map(|header| header["kid"].clone());
        let first = until_token(agent, &alloc, "lasting", |_| Ok(true))?;
        let renewed = until_token(agent, &alloc, "short", |_| Ok(true))?;
        // The node renews it at half of its life.
        until_token(agent, &alloc, "short", |token| Ok(token != renewed))
            .with_context(|| format!("no token of {id} was renewed"))?;
        kept.push((id, alloc, kid(&first)?, first));
    }

    // The new key signs at once, while the verifiers may have the old set for a moment.
    agent.put("/v1/operator/keyring/rotate", &json!(null))?;
    for (id, alloc, before, first) in &kept {
        for verifier in &mut verifiers {
            until("a token of the new key that is accepted", BOUND, || {
                let new = until_token(agent, alloc, "short", |token| Ok(&header(token)?["kid"] != before))?;
                verifier.accepts(&new, "short.example").map(Some)
            })
            .with_context(|| format!("after a rotation, {id}"))?;
            verifier.accepts(first, "sts.example").with_context(|| format!("from before the rotation, {id}"))?;
        }
    }

    // A token that has ended.
    let (_, alloc, ..) = &kept[0];
    let last = until_token(agent, alloc, "short", |_| Ok(true))?;
    let end = claims(&last)?["exp"].as_u64().context("it has no end")?;
    until("the end of a token", BOUND, || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        Ok((now > Duration::from_secs(end + 1)).then_some(()))
    })?;
    for verifier in &mut verifiers {
        verifier.refuses("a token that has ended", &last, "short.example")?;
    }
    for id in ["near", "far"] {
        agent.delete(&format!("/v1/job/{id}?purge=true"))?;
    }
    agent.until_no_record()
}

/// A lasting identity for two parties, and one that is renewed every few seconds. Both end: go-oidc refuses a token
/// without an end.
fn identities() -> Value {
    json!({"Identities": [
        {"Name": "lasting", "Audience": ["sts.example", "other.example"], "File": true, "ExtraClaims": ["team"],
            "TTL": 3_600_000_000_000_i64},
        {"Name": "short", "Audience": ["short.example"], "File": true, "TTL": 20_000_000_000_i64},
    ]})
}

/// What a relying party makes of the tokens of a task.
fn judge(agent: &Agent, verifier: &mut Verifier, job: &str, alloc: &str) -> Result<()> {
    let token = until_token(agent, alloc, "lasting", |_| Ok(true))?;
    for audience in ["sts.example", "other.example"] {
        let claims = verifier.accepts(&token, audience)?;
        let subject = format!("global:default:{job}:g:t:lasting");
        let said = [&claims["sub"], &claims["nomad_job_id"], &claims["nomad_allocation_id"]];
        ensure!(said == [subject.as_str(), job, alloc], "the claims are {claims}");
        let wanted = json!({"where": format!("dc1/{job}"), "team": "blue"});
        ensure!(claims["extra_claims"] == wanted, "the claims of the namespace are {}", claims["extra_claims"]);
    }
    verifier.refuses("a token for somebody else", &token, "third.example")?;
    let short = until_token(agent, alloc, "short", |_| Ok(true))?;
    let claims = verifier.accepts(&short, "short.example")?;
    ensure!(claims["extra_claims"] == json!({"where": format!("dc1/{job}")}), "it named no claim: {claims}");

    let parts: Vec<&str> = token.split('.').collect();
    let [head, body, signature] = parts.as_slice() else { bail!("a token has three parts: {token}") };
    let other = encode(&decode(body)?.replace(job, "root"));
    verifier.refuses("changed claims", &format!("{head}.{other}.{signature}"), "sts.example")?;
    let none = encode(&decode(head)?.replace("RS256", "none"));
    verifier.refuses("a token without a signature", &format!("{none}.{body}."), "sts.example")?;
    let mut turned: Vec<char> = signature.chars().collect();
    turned.reverse();
    let turned: String = turned.into_iter().collect();
    verifier.refuses("another signature", &format!("{head}.{body}.{turned}"), "sts.example")
}

/// The newest token of an identity in the task's output for which this holds.
fn until_token(agent: &Agent, alloc: &str, identity: &str, holds: impl Fn(&str) -> Result<bool>) -> Result<String> {
    let prefix = format!("nomad_{identity}.jwt ");
    until(&format!("a token of identity {identity}"), BOUND, || {
        let shown = agent.output(alloc, "stdout").unwrap_or_default();
        // The last line may be half written.
        let whole = shown.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let Some(token) = whole.lines().rev().find_map(|line| line.strip_prefix(&*prefix)) else { return Ok(None) };
        Ok(holds(token)?.then(|| token.to_owned()))
    })
}

fn header(token: &str) -> Result<Value> {
    Ok(serde_json::from_str(&decode(token.split('.').next().unwrap_or_default())?)?)
}

fn claims(token: &str) -> Result<Value> {
    Ok(serde_json::from_str(&decode(token.split('.').nth(1).unwrap_or_default())?)?)
}

/// A part of a token.
fn decode(part: &str) -> Result<String> {
    Ok(String::from_utf8(URL_SAFE_NO_PAD.decode(part)?)?)
}

fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}
