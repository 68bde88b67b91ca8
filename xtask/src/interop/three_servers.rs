//! The page of getting started with three servers, to the letter: an etcd of three members, three servers and a node,
//! all with TLS, in a network namespace of their own; the leader is killed and comes back.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use testkit::{Dir, Step, missing, steps};

use super::{
    cluster, etcd,
    sshd::{inhabitants, ip, remove_namespace},
};
use crate::{
    local::{self, BOUND, until},
    packages::{self, Wanted},
    workspace,
};

const PAGE: &str = "docs/getting-started/three-servers.md";
/// Commands that are not run, and why.
const PREPARED: [(&str, &str); 1] = [("apt-get install -y etcd-server etcd-client", "the check has installed both")];
/// What a reader looks at again when it is not there yet.
const LOOKS: [&str; 4] = ["server members", "node status", "job status", "endpoint health"];
/// Where the page has its data.
const DATA: &str = "/tmp/drover-three";

/// The namespace of the page.
struct Alone(String);

impl Drop for Alone {
    fn drop(&mut self) {
        remove_namespace(&self.0);
    }
}

/// The check.
pub(crate) fn check() -> Result<()> {
    packages::need_root("network namespaces need root")?;
    packages::need(&[Wanted::new("ip", "iproute2"), Wanted::new("nsenter", "util-linux")])?;
    etcd::need()?;
    let dir = Dir::for_all("three-servers");
    let alone = Alone(format!("dt{}", std::process::id()));
    ip(&format!("netns add {}", alone.0))?;
    ip(&format!("-n {} link set lo up", alone.0))?;
    let result = follow(dir.path(), &alone.0).with_context(|| local::ends_of_logs(dir.path()));
    local::end_all(dir.path())?;
    result
}

fn follow(dir: &Path, namespace: &str) -> Result<()> {
    let data = dir.join("data").display().to_string();
    let text = fs::read_to_string(workspace::root().join(PAGE)).with_context(|| format!("read {PAGE}"))?;
    let (mut before, mut played) = (String::new(), 0);
    for step in steps(&text.replace(DATA, &data)) {
        match step {
            Step::File(name, text) => fs::write(dir.join(name), text)?,
            Step::Prepare(command) if PREPARED.iter().any(|(known, _)| *known == command) => {}
            Step::Prepare(command) => {
                ensure!(command.starts_with("export "), "nobody runs `{command}`; show it as `console`");
                before.push_str(&format!("{command}\n"));
            }
            // Each command has a shell of its own here, which knows no jobs of others.
            Step::Run(command, _) if command == "kill $(jobs -p); wait" => {
                inhabitants(namespace).into_iter().try_for_each(|pid| local::signal(pid, Signal::TERM))?;
                let ended = || Ok(inhabitants(namespace).is_empty().then_some(()));
                until("an end of all that the page has started", BOUND, ended)?;
            }
            Step::Run(command, wanted) => {
                play(dir, namespace, &before, &command, &wanted)?;
                played += 1;
            }
            Step::End(name) => bail!("{name} is no agent of this page"),
        }
    }
    ensure!(played > 20, "only {played} commands were played");
    let left = local::processes_of(dir);
    ensure!(left.is_empty() && !Path::new(&data).exists(), "the page leaves {left:?} or its data");
    Ok(())
}

/// Runs a command until it prints what the page says. What changes something is run once.
fn play(dir: &Path, namespace: &str, before: &str, command: &str, wanted: &[String]) -> Result<()> {
    let own = cluster::program();
    let own = own.parent().context("the directory of the program")?;
    let path = std::env::join_paths(
        [own.to_owned()].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())),
    )?;
    let looks = LOOKS.iter().any(|verb| command.contains(verb));
    let once = || -> Result<Option<()>> {
        let file = dir.join("printed");
        let out = fs::File::create(&file)?;
        // Into a file: what is started in the background would keep a pipe open.
        let status = Command::new("nsenter")
            .arg(format!("--net=/run/netns/{namespace}"))
            .args(["timeout", "60", "bash", "-c", &format!("{before}{command}")])
            .current_dir(dir)
            .env("PATH", &path)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .status()?;
        let printed = fs::read_to_string(&file)?;
        let absent = missing(wanted, &printed);
        if status.success() && absent.is_none() {
            return Ok(Some(()));
        }
        bail!("`{command}` ended with {status} and prints not {absent:?}, but\n{printed}")
    };
    if looks {
        return until(&format!("what `{command}` prints"), BOUND, || {
            std::thread::sleep(std::time::Duration::from_millis(200));
            once()
        });
    }
    once().map(drop)
}
