//! Certificates of `nomad tls` for our agents with the stock command line before them, and certificates of `drover tls`
//! for a stock agent with ours: whoever has either goes on with it.

use std::{
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{
    cluster::{self, Agent, Role},
    job::Job,
};
use crate::{
    local::{self, BOUND, until},
    packages, peer,
};

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_root("a stock Nomad runs tasks as root only")?;
    packages::need_go()?;
    let nomad = peer::nomad_cached(&peer::NOMAD_1_9)?;
    let dir = std::env::temp_dir().join(format!("drover-interop-tls-{}", std::process::id()));
    local::remove(&dir);
    let told = ours_with_theirs(&nomad, &dir.join("theirs")).and_then(|()| theirs_with_ours(&nomad, &dir.join("ours")));
    local::remove(&dir);
    told
}

/// Certificates that a command line made with its own defaults.
struct Certificates {
    dir: PathBuf,
}

impl Certificates {
    fn of(program: &Path, dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        for args in [
            &["ca", "create"][..],
            &["cert", "create", "-server"],
            &["cert", "create", "-client"],
            &["cert", "create", "-cli"],
        ] {
            let out = Command::new(program).arg("tls").args(args).current_dir(dir).output()?;
            ensure!(out.status.success(), "tls {args:?}: {}", String::from_utf8_lossy(&out.stderr));
        }
        Ok(Self { dir: dir.to_owned() })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The block of an agent of that role.
    fn block(&self, role: &str) -> String {
        format!(
            "tls {{\n  http = true\n  rpc = true\n  verify_server_hostname = true\n  verify_https_client = true\n  \
             ca_file = {:?}\n  cert_file = {:?}\n  key_file = {:?}\n}}\n",
            self.file("nomad-agent-ca.pem"),
            self.file(&format!("global-{role}-nomad.pem")),
            self.file(&format!("global-{role}-nomad-key.pem")),
        )
    }

    /// A command line of a person who has the certificate for people.
    fn person(&self, program: &Path, agent: &Agent) -> Person {
        let of = |variable: &'static str, file: &str| (variable, self.file(file).into_os_string());
        Person {
            program: program.to_owned(),
            address: format!("https://127.0.0.1:{}", agent.http_port()),
            files: vec![
                of("NOMAD_CACERT", "nomad-agent-ca.pem"),
                of("NOMAD_CLIENT_CERT", "global-cli-nomad.pem"),
                of("NOMAD_CLIENT_KEY", "global-cli-nomad-key.pem"),
            ],
        }
    }
}

struct Person {
    program: PathBuf,
    address: String,
    files: Vec<(&'static str, std::ffi::OsString)>,
}

impl Person {
    fn command<A: AsRef<OsStr>>(&self, args: &[A]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("NOMAD_ADDR", &self.address).envs(self.files.iter().cloned()).stdin(Stdio::null());
        command
    }

    /// What a command printed; it must end with 0.
    fn told(&self, args: &[&str]) -> Result<String> {
        let out = self.command(args).output()?;
        let text = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        ensure!(out.status.success(), "{args:?} ended with {}: {text}", out.status);
        Ok(text)
    }

    /// What it prints when it must not end with 0.
    fn refused(&self, args: &[&str]) -> Result<String> {
        let out = self.command(args).output()?;
        let text = [&out.stdout, &out.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
        ensure!(!out.status.success(), "{args:?} was answered: {text}");
        Ok(text)
    }

    fn api(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&self.told(&["operator", "api", path])?).with_context(|| format!("no JSON from {path}"))
    }

    /// Runs the job, and asks in each way: lists, logs, a session in the task, the events as they come.
    fn works(&self, dir: &Path) -> Result<()> {
        until("a node with its driver", BOUND, || {
            let nodes = self.api("/v1/nodes")?;
            let ready = |node: &Value| node["Status"] == "ready" && node["Drivers"]["raw_exec"]["Healthy"] == true;
            Ok(nodes.as_array().into_iter().flatten().any(ready).then_some(()))
        })?;
        let events = Events::follow(self)?;
        let file = dir.join("job.json");
        let job = Job::script("secured", "service", "raw_exec", "echo said; exec sleep 100000").undeployed().body();
        fs::write(&file, job.to_string())?;
        self.told(&["job", "run", "-detach", "-json", &file.display().to_string()])?;
        let alloc = until("the task", BOUND, || {
            let allocs = self.api("/v1/job/secured/allocations")?;
            let mut running =
                allocs.as_array().into_iter().flatten().filter(|alloc| alloc["ClientStatus"] == "running");
            Ok(running.next().and_then(|alloc| alloc["ID"].as_str().map(str::to_owned)))
        })?;
        until("its log", BOUND, || Ok(self.told(&["alloc", "logs", &alloc])?.contains("said").then_some(())))?;
        let answer = self.told(&["alloc", "exec", &alloc, "/bin/echo", "inside"])?;
        ensure!(answer.contains("inside"), "exec printed {answer:?}");
        events.until("JobRegistered")?;
        self.told(&["job", "stop", "-detach", "secured"])?;
        events.until("JobDeregistered")?;
        until("the end of the task", BOUND, || {
            let alloc = self.api(&format!("/v1/allocation/{alloc}"))?;
            Ok((alloc["ClientStatus"] == "complete").then_some(()))
        })
    }
}

/// The event stream as a command prints it.
struct Events {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Events {
    fn follow(person: &Person) -> Result<Self> {
        let mut command = person.command(&["operator", "api", "/v1/event/stream?topic=Job"]);
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let out = child.stdout.take().context("no output")?;
        let (tell, lines) = mpsc::channel();
        // Ends with the command.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { child, lines })
    }

    fn until(&self, kind: &str) -> Result<()> {
        loop {
            match self.lines.recv_timeout(BOUND) {
                Ok(line) if line.contains(kind) => return Ok(()),
                Ok(_) => {}
                Err(_) => bail!("the event stream has not told of {kind}"),
            }
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn ours_with_theirs(nomad: &Path, dir: &Path) -> Result<()> {
    let certificates = Certificates::of(nomad, dir)?;
    let server = Agent::start_as("tls-server", Role::Server, &[], &certificates.block("server"))?;
    let node = Agent::start_as("tls-node", Role::Node(&server), &[], &certificates.block("client"))?;
    let logs = || format!("server:\n{}\nnode:\n{}", server.log_tail(), node.log_tail());
    let person = certificates.person(nomad, &server);
    person.works(dir).with_context(logs).context("our agents with certificates of nomad tls")?;
    let stranger = Person { files: person.files[..1].to_vec(), ..certificates.person(nomad, &server) };
    let text = stranger.refused(&["node", "status"])?;
    ensure!(text.contains("certificate"), "without a certificate: {text}");
    let plain = Person { address: server.address(), files: Vec::new(), program: nomad.to_owned() };
    let text = plain.refused(&["node", "status"])?;
    ensure!(text.contains("HTTPS"), "without TLS: {text}");
    Ok(())
}

fn theirs_with_ours(nomad: &Path, dir: &Path) -> Result<()> {
    let drover = cluster::program();
    let certificates = Certificates::of(&drover, dir)?;
    let more =
        format!("{}plugin \"raw_exec\" {{\n  config {{\n    enabled = true\n  }}\n}}\n", certificates.block("server"));
    let agent = Agent::start_stock(nomad, "tls-stock", &[], None, &more)?;
    let person = certificates.person(&drover, &agent);
    person.works(dir).with_context(|| agent.log_tail()).context("a stock agent with certificates of drover tls")
}
