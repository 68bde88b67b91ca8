//! A Drover agent (server and node in one) for a check: its own directory, free ports, everything ended afterwards.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result};
use serde_json::Value;

use crate::local::{self, free_ports, processes_of};

/// A running agent.
pub(crate) struct Agent {
    dir: PathBuf,
    port: u16,
    child: Child,
}

/// The debug build of `drover`.
pub(crate) fn program() -> PathBuf {
    local::target_dir().join("debug/drover")
}

impl Agent {
    /// Starts an agent with a directory of plugins and further configuration.
    pub(crate) fn start(name: &str, plugins: &[(&str, &Path)], more: &str) -> Result<Self> {
        let dir = std::env::temp_dir().join(format!("drover-interop-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&dir));
        fs::create_dir_all(dir.join("plugins"))?;
        for (file, from) in plugins {
            fs::copy(from, dir.join("plugins").join(file)).with_context(|| format!("no plugin at {}", from.display()))?;
        }
        let [port, rpc] = free_ports()?;
        let config = format!(
            "data_dir = {:?}\nplugin_dir = {:?}\nports {{\n  http = {port}\n  rpc = {rpc}\n}}\nserver {{\n  enabled = true\n}}\nclient {{\n  enabled = true\n}}\n{more}\n",
            dir.join("data"),
            dir.join("plugins"),
        );
        fs::write(dir.join("agent.hcl"), config)?;
        let child = spawn(&dir)?;
        Ok(Self { dir, port, child })
    }

    /// SIGKILL for the agent alone, then a new one on the same directory.
    pub(crate) fn crash_and_restart(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.child = spawn(&self.dir)?;
        Ok(())
    }

    /// Address of its API.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.address())
    }
    /// GET as JSON.
    pub(crate) fn get(&self, path: &str) -> Result<Value> {
        Ok(ureq::get(self.url(path)).call()?.body_mut().read_json()?)
    }
    /// GET as text.
    pub(crate) fn text(&self, path: &str) -> Result<String> {
        Ok(ureq::get(self.url(path)).call()?.body_mut().read_to_string()?)
    }
    /// PUT as JSON.
    pub(crate) fn put(&self, path: &str, body: &Value) -> Result<Value> {
        Ok(ureq::put(self.url(path)).send_json(body)?.body_mut().read_json()?)
    }
    /// PUT: status and text of the answer, whatever they are.
    pub(crate) fn put_text(&self, path: &str, body: &Value) -> Result<(u16, String)> {
        let request = ureq::put(self.url(path)).config().http_status_as_error(false).build();
        let mut answer = request.send_json(body)?;
        Ok((answer.status().as_u16(), answer.body_mut().read_to_string()?))
    }
    /// DELETE.
    pub(crate) fn delete(&self, path: &str) -> Result<Value> {
        Ok(ureq::delete(self.url(path)).call()?.body_mut().read_json()?)
    }
    /// Processes of the agent: pid → command line.
    pub(crate) fn processes(&self) -> BTreeMap<u32, String> {
        processes_of(&self.dir)
    }
    /// The end of the agent's log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.dir.join("agent.log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        local::remove(&self.dir);
    }
}

fn spawn(dir: &Path) -> Result<Child> {
    let log = fs::OpenOptions::new().create(true).append(true).open(dir.join("agent.log"))?;
    Command::new(program())
        .args(["agent", "-config"])
        .arg(dir.join("agent.hcl"))
        .env("DROVER_INTEROP_DIR", dir)
        // Some Go drivers drop files into the directory that their host was started in.
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("could not start {}", program().display()))
}
