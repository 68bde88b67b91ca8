//! Artifacts from real peers: repositories by git, objects of an S3 that checks signatures.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{api, cluster::Agent, ecs, job::Job};
use crate::{
    local::{self, BOUND, until},
    packages::{self, Wanted},
    process::Run,
};

/// A server of moto that checks signatures: after the first calls, which make a user, a bucket and an object, nothing
/// is answered without one.
const S3: &str = r#"
import os, sys, json
os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "5"
from moto.server import ThreadedMotoServer
import boto3
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
address = "http://%s:%s" % server.get_host_and_port()
def client(service):
    return boto3.client(service, endpoint_url=address, region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")
iam, s3 = client("iam"), client("s3")
iam.create_user(UserName="fetcher")
key = iam.create_access_key(UserName="fetcher")["AccessKey"]
allow = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
iam.put_user_policy(UserName="fetcher", PolicyName="s3", PolicyDocument=json.dumps(allow))
s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
s3.put_object(Bucket="bucket", Key="dir/a b+c.txt", Body=b"from s3\n")
print(json.dumps({"address": address, "id": key["AccessKeyId"], "secret": key["SecretAccessKey"]}), flush=True)
sys.stdin.read()
"#;

/// Ends with its stdin, and with this value.
struct Moto(Child);

impl Drop for Moto {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need(&[Wanted::new("git", "git")])?;
    let python = ecs::need_moto()?;
    let dir = std::env::temp_dir().join(format!("drover-interop-repositories-{}", std::process::id()));
    fs::create_dir_all(&dir)?;
    let result = with_peers(&python, &dir);
    local::remove(&dir);
    result
}

fn with_peers(python: &Path, dir: &Path) -> Result<()> {
    let repository = repository(dir)?;
    let mut child = Command::new(python)
        .args(["-c", S3])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let out = child.stdout.take().context("no stdout")?;
    let moto = Moto(child);
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line)?;
    let s3: Value = serde_json::from_str(&line).context("moto did not start")?;
    let offered = format!(
        "client {{\n  artifact {{\n    filesystem_isolation_extra_paths = [\"d:r:{}\"]\n  }}\n}}",
        dir.display()
    );
    let agent = Agent::start("artifacts", &[], &offered)?;
    let result =
        story(&agent, &repository, &s3).with_context(|| format!("the end of the agent's log:\n{}", agent.log_tail()));
    drop(agent);
    drop(moto);
    result
}

/// A repository with a tag, a later commit and a submodule.
fn repository(dir: &Path) -> Result<PathBuf> {
    let git = |at: &Path, args: &[&str]| {
        let identity =
            ["-c", "user.name=drover", "-c", "user.email=drover@localhost", "-c", "protocol.file.allow=always"];
        Run::new("git", identity.iter().chain(args).copied()).dir(at).quiet().run()
    };
    let (inner, outer) = (dir.join("inner"), dir.join("outer"));
    for (at, file, text) in [(&inner, "inner.txt", "inner\n"), (&outer, "said.txt", "first\n")] {
        fs::create_dir_all(at.join("sub"))?;
        git(at, &["init", "--quiet", "--initial-branch", "main"])?;
        fs::write(at.join(file), text)?;
        fs::write(at.join("sub/below.txt"), "below\n")?;
        git(at, &["add", "."])?;
        git(at, &["commit", "--quiet", "-m", "first"])?;
    }
    git(&outer, &["tag", "v1"])?;
    fs::write(outer.join("said.txt"), "second\n")?;
    git(&outer, &["submodule", "--quiet", "add", &format!("file://{}", inner.display()), "module"])?;
    git(&outer, &["commit", "--quiet", "-a", "-m", "second"])?;
    Ok(outer)
}

fn story(agent: &Agent, repository: &Path, s3: &Value) -> Result<()> {
    agent.until_healthy(&["raw_exec"], 1)?;
    let git = format!("git::file://{}", repository.display());
    let object = format!("s3::{}/bucket/dir/a%20b%2Bc.txt", s3["address"].as_str().unwrap_or_default());
    let keys =
        |secret: &Value| json!({"aws_access_key_id": s3["id"], "aws_access_key_secret": secret, "region": "eu-west-1"});
    for (id, source, options, file, text) in [
        ("newest", git.clone(), json!({}), "said.txt", "second\n"),
        ("module", git.clone(), json!({}), "module/inner.txt", "inner\n"),
        ("tag", git.clone(), json!({"ref": "v1"}), "said.txt", "first\n"),
        ("branch", git.clone(), json!({"ref": "main", "depth": "1"}), "said.txt", "second\n"),
        ("below", format!("{git}//sub"), json!({}), "below.txt", "below\n"),
        ("object", object.clone(), keys(&s3["secret"]), "a b+c.txt", "from s3\n"),
    ] {
        agent.put("/v1/jobs", &job(id, &source, &options, file))?;
        let alloc = ended(agent, id)?;
        ensure!(alloc["ClientStatus"] == "complete", "{id}: {}", alloc["TaskStates"]["t"]["Events"]);
        let log = agent.output(&api::text(&alloc["ID"]), "stdout")?;
        ensure!(log == text, "{id}: the task read {log:?}");
    }
    for (id, source, options, part) in [
        ("no-ref", git, json!({"ref": "nothing"}), "git checkout"),
        ("no-leave", "git::file:///etc".to_owned(), json!({}), "does not offer"),
        (
            "no-repository",
            format!("git::file://{}/none", repository.parent().unwrap_or(repository).display()),
            json!({}),
            "look for",
        ),
        ("no-key", object, keys(&json!("wrong")), "answered 403"),
    ] {
        agent.put("/v1/jobs", &job(id, &source, &options, "x"))?;
        let alloc = ended(agent, id)?;
        let events = alloc["TaskStates"]["t"]["Events"].to_string();
        ensure!(alloc["ClientStatus"] == "failed" && events.contains(part), "{id}: {events}");
    }
    Ok(())
}

fn job(id: &str, source: &str, options: &Value, file: &str) -> Value {
    let artifact = json!({"GetterSource": source, "GetterOptions": options, "RelativeDest": "local/"});
    let job = Job::command(id, "batch", "raw_exec", "/bin/cat", &[&format!("${{NOMAD_TASK_DIR}}/{file}")]).once();
    job.task(json!({ "Artifacts": [artifact] })).body()
}

/// The job's allocation when it has ended.
fn ended(agent: &Agent, id: &str) -> Result<Value> {
    until(&format!("the end of job {id}"), BOUND, || {
        let ended = |a: &Value| matches!(a["ClientStatus"].as_str(), Some("complete" | "failed"));
        Ok(agent.allocs(id)?.into_iter().find(ended))
    })
}
