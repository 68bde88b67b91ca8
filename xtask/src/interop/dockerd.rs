//! A Docker engine of a check's own: private socket, data, bridge and cgroup; nothing of it is left.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use crate::{
    local::{self, BOUND, kill, processes_of, until},
    packages::{self, Skip, Wanted},
    process::Run,
};

/// Image with a static busybox and nothing else.
pub(crate) const IMAGE: &str = "drover-busybox:1";
/// Another name of [`IMAGE`]: that in the conformance suite's preset.
pub(crate) const PRESET_IMAGE: &str = "busybox:1";

/// A running engine.
pub(crate) struct Daemon {
    dir: PathBuf,
    bridge: String,
    more: Vec<String>,
    child: Option<Child>,
    containerd: Option<Child>,
}

/// What an engine and its image are made of.
pub(crate) const PACKAGES: [Wanted; 4] = [
    Wanted::new("dockerd", "docker.io"),
    Wanted::without_libraries("busybox", "busybox-static"),
    Wanted::new("ip", "iproute2"),
    Wanted::new("tar", "tar"),
];

/// Makes ready what an engine of its own needs; the error says why it cannot be had.
pub(crate) fn need(more: &[Wanted]) -> Result<(), Skip> {
    packages::need_root("an engine of its own needs root")?;
    // Where the kernel has it switched on, engines refuse to run containers without its tools.
    let armored = fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'));
    if armored {
        packages::need(&[Wanted::new("apparmor_parser", "apparmor")])?;
    }
    packages::need(&PACKAGES)?;
    packages::need(more)
}

impl Daemon {
    /// Prepares an engine; [`Daemon::up`] starts it. `number`, a digit, tells the engines of one run apart: checks run
    /// beside each other.
    pub(crate) fn new(number: u8) -> Result<Daemon> {
        let pid = std::process::id();
        let daemon = Daemon::of(number, pid);
        drop(fs::remove_dir_all(&daemon.dir));
        fs::create_dir_all(&daemon.dir)?;
        Run::new("ip", ["link", "add", &daemon.bridge, "type", "bridge"])
            .run()
            .context("the machine cannot make a bridge")?;
        // Runs beside each other must not meet.
        let net = format!("10.{}.{}.1/24", 224 + number, pid % 254 + 1);
        Run::new("ip", ["addr", "add", &net, "dev", &daemon.bridge]).run()?;
        Run::new("ip", ["link", "set", &daemon.bridge, "up"]).run()?;
        Ok(daemon)
    }

    fn of(number: u8, pid: u32) -> Daemon {
        let dir = std::env::temp_dir().join(format!("drover-interop-dockerd{number}-{pid}"));
        Daemon {
            dir,
            bridge: format!("drv{number}{}", pid % 1_000_000),
            more: Vec::new(),
            child: None,
            containerd: None,
        }
    }

    /// Takes down what a run that was killed has left of an engine. Its number is the only digit of its name.
    pub(crate) fn sweep(name: &str, pid: u32) {
        if let Some(number) = name.strip_prefix("dockerd").and_then(|number| number.parse().ok()) {
            drop(Daemon::of(number, pid));
        }
    }

    /// Further arguments for the next start.
    pub(crate) fn listen_also(&mut self, more: &[String]) {
        self.more = more.to_vec();
    }

    /// Its directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where it listens on this machine.
    pub(crate) fn url(&self) -> String {
        format!("unix://{}", self.dir.join("d.sock").display())
    }

    /// Starts it, and waits until it answers.
    pub(crate) fn up(&mut self) -> Result<()> {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let path = |name: &str| self.dir.join(name).display().to_string();
        if self.containerd.is_none() {
            // As a service of its own, as distributions run it: it outlives the engine.
            let config = format!(
                "version = 2\nroot = {:?}\nstate = {:?}\ndisabled_plugins = \
                    [\"io.containerd.grpc.v1.cri\"]\n[grpc]\naddress = {:?}\n",
                path("containerd"),
                path("containerd-state"),
                path("c.sock"),
            );
            fs::write(path("containerd.toml"), config)?;
            let mut started = Command::new("containerd");
            started.args(["--config", &path("containerd.toml")]).stdin(Stdio::null());
            let child = started
                .stdout(log.try_clone()?)
                .stderr(log.try_clone()?)
                .spawn()
                .context("could not start containerd")?;
            self.containerd = Some(child);
            until("a containerd that listens", BOUND, || {
                Ok(std::os::unix::net::UnixStream::connect(path("c.sock")).is_ok().then_some(()))
            })?;
        }
        // Neither the machine's packet filter nor its routing is touched: published ports are served by the engine's
        // own proxy.
        let args = [
            "--host".into(),
            self.url(),
            "--data-root".into(),
            path("data"),
            "--exec-root".into(),
            path("exec"),
            "--pidfile".into(),
            path("pid"),
            "--containerd".into(),
            path("c.sock"),
            "--bridge".into(),
            self.bridge.clone(),
            "--cgroup-parent".into(),
            self.cgroup(),
            // Its other way takes cgroups of systemd only, which not every machine has.
            "--exec-opt=native.cgroupdriver=cgroupfs".into(),
            "--iptables=false".into(),
            "--ip6tables=false".into(),
            "--ip-forward=false".into(),
            "--ip-masq=false".into(),
            "--live-restore".into(),
        ];
        let child = Command::new("dockerd")
            .args(args.iter().chain(&self.more))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("could not start dockerd")?;
        self.child = Some(child);
        until("an engine that answers", BOUND, || Ok(self.cli(&["version"]).quiet().succeeds().then_some(())))
            .with_context(|| self.log_tail())
    }

    fn cgroup(&self) -> String {
        format!("/drover-{}", self.bridge)
    }

    /// The client, told where the engine is.
    fn cli(&self, args: &[&str]) -> Run {
        let url = self.url();
        Run::new("docker", ["-H", &url].into_iter().chain(args.iter().copied()))
    }

    /// Runs the client and takes its output.
    pub(crate) fn docker(&self, args: &[&str]) -> Result<String> {
        self.cli(args).output()
    }

    /// Containers with their names: all, or the running ones.
    pub(crate) fn containers(&self, all: bool) -> Result<Vec<(String, String)>> {
        let mut args = vec!["ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"];
        if all {
            args.push("-a");
        }
        let list = self.docker(&args)?;
        Ok(list.lines().filter_map(|l| l.split_once(' ')).map(|(id, name)| (id.to_owned(), name.to_owned())).collect())
    }

    /// The id of the one container that there is.
    pub(crate) fn one(&self) -> Result<String> {
        let all = self.containers(true)?;
        ensure!(all.len() == 1, "one container expected, there are {all:?}");
        Ok(all[0].0.clone())
    }

    /// Waits until there is no container any more.
    pub(crate) fn until_empty(&self) -> Result<()> {
        until("no container left", BOUND, || Ok(self.containers(true)?.is_empty().then_some(())))
    }

    /// Makes [`IMAGE`].
    pub(crate) fn import_image(&self) -> Result<()> {
        let tree = self.dir.join("tree");
        for dir in ["bin", "tmp", "etc"] {
            fs::create_dir_all(tree.join(dir))?;
        }
        let busybox = packages::find("busybox").context("there is no busybox")?;
        fs::copy(&busybox, tree.join("bin/busybox"))?;
        for applet in Run::new(&busybox, ["--list"]).output()?.lines().filter(|applet| *applet != "busybox") {
            std::os::unix::fs::symlink("busybox", tree.join("bin").join(applet))?;
        }
        fs::write(tree.join("etc/passwd"), "root:x:0:0:root:/:/bin/sh\nguest:x:1000:1000:guest:/:/bin/sh\n")?;
        let tar = self.dir.join("tree.tar");
        Run::new("tar", ["-C".as_ref(), tree.as_os_str(), "-cf".as_ref(), tar.as_os_str(), ".".as_ref()]).run()?;
        self.docker(&["import", &tar.display().to_string(), IMAGE])?;
        self.docker(&["tag", IMAGE, PRESET_IMAGE]).map(drop)
    }

    /// SIGKILL for the engine alone; its containers run on.
    pub(crate) fn crash(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn ctr(&self, args: &[&str]) -> Run {
        let socket = self.dir.join("c.sock").display().to_string();
        Run::new("ctr", ["--address", &socket, "--namespace", "moby"].into_iter().chain(args.iter().copied()))
    }

    /// Of an engine that was killed: what its containerd has started and it has not noted. Those it will never see
    /// again, unless their tasks end. Ids with their labels.
    pub(crate) fn unseen(&self) -> Result<Vec<(String, Value)>> {
        let tasks = self.ctr(&["tasks", "list"]).output()?;
        let mut unseen = Vec::new();
        for line in tasks.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [id, _, "RUNNING" | "STOPPED"] = words[..] else { continue };
            let noted = fs::read(self.dir.join("data/containers").join(id).join("config.v2.json"))?;
            let noted: Value = serde_json::from_slice(&noted)?;
            let state = &noted["State"];
            if state["Running"] != true && state["StartedAt"].as_str().is_some_and(|at| at.starts_with("0001-")) {
                unseen.push((id.to_owned(), noted["Config"]["Labels"].clone()));
            }
        }
        Ok(unseen)
    }

    /// Ends what a container has started, past the engine. One that has ended already is no error.
    pub(crate) fn end_task(&self, container: &str) {
        drop(self.ctr(&["tasks", "kill", "--all", "--signal", "SIGKILL", container]).quiet().run());
    }

    /// The end of its log.
    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("the end of the engine's log:\n{}", lines[lines.len().saturating_sub(15)..].join("\n"))
    }

    /// Ends it and checks that nothing is left.
    pub(crate) fn end(mut self) -> Result<()> {
        self.take_down();
        let left = processes_of(&self.dir);
        ensure!(left.is_empty(), "processes of the engine are left: {left:?}");
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let left: Vec<&str> = mounts.lines().filter(|l| l.contains(&*self.dir.to_string_lossy())).collect();
        ensure!(left.is_empty(), "mounts of the engine are left: {left:?}");
        ensure!(!self.dir.exists(), "{} is left", self.dir.display());
        Ok(())
    }

    fn take_down(&mut self) {
        if !self.dir.exists() {
            return;
        }
        if self.child.is_some() {
            let all: Vec<String> = self.containers(true).unwrap_or_default().into_iter().map(|(id, _)| id).collect();
            if !all.is_empty() {
                let args: Vec<&str> = ["rm", "-f", "-v"].into_iter().chain(all.iter().map(String::as_str)).collect();
                drop(self.docker(&args));
            }
        }
        if let Some(mut child) = self.child.take() {
            drop(local::signal(child.id(), Signal::TERM));
            drop(until("the engine's end", BOUND, || Ok(child.try_wait()?.map(drop))));
            drop(child.kill());
            drop(child.wait());
        }
        if let Some(mut child) = self.containerd.take() {
            drop(local::signal(child.id(), Signal::TERM));
            drop(until("containerd's end", BOUND, || Ok(child.try_wait()?.map(drop))));
            drop(child.kill());
            drop(child.wait());
        }
        drop(until("the end of what the engine has started", BOUND, || {
            let left = processes_of(&self.dir);
            for pid in left.keys() {
                kill(*pid)?;
            }
            Ok(left.is_empty().then_some(()))
        }));
        drop(Run::new("ip", ["link", "del", &self.bridge]).run());
        for root in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            remove_cgroup(&root.path().join(&self.cgroup()[1..]));
        }
        remove_cgroup(&Path::new("/sys/fs/cgroup").join(&self.cgroup()[1..]));
        local::remove(&self.dir);
    }
}

/// Cgroups go from the inside out, and only when nobody is in them.
fn remove_cgroup(dir: &Path) {
    for pid in
        fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines().filter_map(|pid| pid.parse().ok())
    {
        drop(kill(pid));
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|t| t.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    drop(until("an empty cgroup", BOUND, || match fs::remove_dir(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(())),
    }));
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.take_down();
    }
}
