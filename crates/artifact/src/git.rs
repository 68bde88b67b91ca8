//! Repositories by the `git` of this host. It runs in the process group of the fetcher and ends with it.

use std::{
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    process::{Command, Stdio},
};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::error::FetchError;

/// What to clone.
pub(crate) struct Clone<'a> {
    pub(crate) url: &'a str,
    pub(crate) reference: Option<&'a str>,
    pub(crate) ssh_key: Option<&'a str>,
    pub(crate) depth: Option<u32>,
    pub(crate) insecure: bool,
}

/// Output that is kept for people.
const KEPT: usize = 2048;

/// Clones into `tree` of the work directory, submodules included.
pub(crate) fn clone(clone: &Clone<'_>, work: &Path, tree: &str) -> Result<(), FetchError> {
    let mut ssh = "ssh -o BatchMode=yes -o StrictHostKeyChecking=accept-new".to_owned();
    if let Some(key) = clone.ssh_key {
        let key = BASE64_STANDARD
            .decode(key.trim())
            .map_err(|e| FetchError::Refused(format!("option \"sshkey\" is not base64: {e}")))?;
        let path = work.join("key");
        let mut options = std::fs::OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| io::Write::write_all(&mut file, &key)).map_err(FetchError::io("write the ssh key"))?;
        ssh.push_str(&format!(" -o IdentitiesOnly=yes -i '{}'", path.display()));
    }
    let git = Git { clone, work, ssh };
    let depth = clone.depth.map(|depth| depth.to_string());
    let mut args = vec!["clone", "--quiet"];
    if let Some(depth) = &depth {
        args.extend(["--depth", depth]);
        // Without its branch a short clone would not have what is asked for.
        args.extend(clone.reference.iter().flat_map(|reference| ["--branch", *reference]));
    }
    git.run("clone", true, work, &[args.as_slice(), &["--", clone.url, tree]].concat())?;
    let tree = work.join(tree);
    if let (Some(reference), None) = (clone.reference, &depth) {
        git.run("checkout", false, &tree, &["checkout", "--quiet", reference, "--"])?;
    }
    let mut update = vec!["submodule", "--quiet", "update", "--init", "--recursive"];
    if let Some(depth) = &depth {
        update.extend(["--depth", depth]);
    }
    git.run("submodule update", true, &tree, &update)
}

struct Git<'a> {
    clone: &'a Clone<'a>,
    work: &'a Path,
    ssh: String,
}

impl Git<'_> {
    fn run(&self, verb: &'static str, network: bool, dir: &Path, args: &[&str]) -> Result<(), FetchError> {
        let protocols =
            if self.clone.url.starts_with("file://") { "file:http:https:ssh:git" } else { "http:https:ssh:git" };
        let mut command = Command::new("git");
        command
            .args(args)
            .current_dir(dir)
            .env("HOME", self.work)
            .env("LC_ALL", "C")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ALLOW_PROTOCOL", protocols)
            .env("GIT_SSH_COMMAND", &self.ssh)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        if self.clone.insecure {
            command.env("GIT_SSL_NO_VERIFY", "1");
        }
        let mut child = command.spawn().map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => FetchError::Refused("this node has no git in its PATH; install it".into()),
            _ => FetchError::Io { doing: "start git".into(), source: e },
        })?;
        let said = child.stderr.take().map(last_words).unwrap_or_default();
        let status = child.wait().map_err(FetchError::io("wait for git"))?;
        if status.success() {
            return Ok(());
        }
        let why = if said.is_empty() { status.to_string() } else { said };
        Err(FetchError::Git { verb, why, transient: network })
    }
}

/// The end of what a program says.
fn last_words(mut from: impl Read) -> String {
    let mut kept: Vec<u8> = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        let surplus = kept.len().saturating_sub(KEPT);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).trim().to_owned()
}
