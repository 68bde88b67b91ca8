//! A Slurm and a Kubernetes among the providers: what nodes are told of them, and what goes wrong there.

use std::{
    cell::Cell,
    fs,
    path::Path,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::net::{NODES, Net};
use crate::{
    builds,
    interop::{kubernetes, slurm, sshd::ip},
    local::target_dir,
    process::Run,
};

/// The claim by which pods reach the directory of the witness.
pub(super) const CLAIM: &str = "witness";

/// What decides in Slurm.
pub(super) const CONTROLLER: Part = Part::Slurm("slurmctld");
/// The daemon of Slurm's only node.
const SLURMD: &str = "n1";
/// Between two times that somebody looks after Slurm.
const TENDED: Duration = Duration::from_secs(10);

/// Daemons that are killed and come back.
pub(super) const PARTS: [Part; 5] = [
    CONTROLLER,
    Part::Slurm(SLURMD),
    Part::Kubernetes("kube-apiserver"),
    Part::Kubernetes("etcd"),
    Part::Kubernetes("n1.kubelet"),
];

/// A daemon of a cluster.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Slurm(&'static str),
    Kubernetes(&'static str),
}

impl Part {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Slurm(SLURMD) => "slurmd",
            Self::Slurm(name) | Self::Kubernetes(name) => name,
        }
    }
}

/// Both clusters live where this program does; nodes reach them over the line of the engine.
pub(super) struct Clusters {
    slurm: slurm::Cluster,
    kubernetes: kubernetes::Cluster,
    /// When somebody last looked after Slurm, or a part of it was killed; none before the first kill.
    tended: Cell<Option<Instant>>,
}

/// What they need of this machine, and the plugins.
pub(super) fn need() -> Result<()> {
    slurm::need()?;
    kubernetes::need()?;
    kubernetes::programs()?;
    builds::build(&["drover-driver-slurm", "drover-driver-kubernetes"])
}

impl Clusters {
    /// `witness` is the directory in which instances bear witness.
    pub(super) fn start(net: &Net, witness: &str) -> Result<Self> {
        let address = net.provider("engine");
        // Longer than any slurmd is away: nobody has asked for the end of what it runs. Not much longer, because a
        // third of it goes by until the controller asks after jobs whose end it was not told.
        let slurm = slurm::Cluster::start_at(&address, 60).context("Slurm did not start")?;
        let kubernetes = kubernetes::Cluster::start(&kubernetes::programs()?).context("Kubernetes did not start")?;
        let server = kubernetes.address()?;
        for node in NODES {
            ip(&format!("-n {} route add {server}/32 via {address}", net.namespace(node)))?;
        }
        kubernetes.lend(CLAIM, witness)?;
        Ok(Self { slurm, kubernetes, tended: Cell::default() })
    }

    /// Drivers with their programs.
    pub(super) fn plugins() -> [(&'static str, std::path::PathBuf); 2] {
        ["slurm", "kubernetes"].map(|driver| (driver, target_dir().join(format!("debug/drover-driver-{driver}"))))
    }

    /// What every node is told of them.
    pub(super) fn settings(&self) -> String {
        format!("{}\n{}\n", self.slurm.settings(), self.kubernetes.settings())
    }

    pub(super) fn kill(&self, part: Part) -> Result<()> {
        match part {
            Part::Slurm(name) => {
                self.tended.set(Some(Instant::now()));
                self.slurm.kill(name)
            }
            Part::Kubernetes(name) => self.kubernetes.kill(name),
        }
    }

    pub(super) fn again(&self, part: Part) -> Result<()> {
        match part {
            Part::Slurm(name) => self.slurm.again(name),
            Part::Kubernetes(name) => self.kubernetes.again(name),
        }
    }

    /// When slurmctld last saved its state; none when it never has.
    pub(super) fn saved(&self) -> Option<SystemTime> {
        self.slurm.saved()
    }

    /// Looks after Slurm once its daemons are back, every few seconds of many calls: what it finds out by itself comes
    /// after minutes, or never.
    pub(super) fn tend(&self) -> Result<()> {
        if self.tended.get().is_none_or(|at| at.elapsed() < TENDED) {
            return Ok(());
        }
        self.tended.set(Some(Instant::now()));
        // A launch that was lost with a daemon, and a job whose end slurmctld has forgotten, count as running until
        // slurmd says what it runs.
        self.slurm.report(SLURMD)?;
        self.slurm.resume()
    }

    /// A person ends an instance by the cluster's own means. `sort` decides how. Returns what was done, nothing where
    /// the process is of no cluster.
    pub(super) fn take_away(&self, pid: u32, sort: usize) -> Option<String> {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let of = |name: &str| {
            let mut words = environment.split(|byte| *byte == 0).filter_map(|word| std::str::from_utf8(word).ok());
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
        };
        // While a daemon is away nothing comes of it, and that is one of the cases.
        if let Some(number) = of("SLURM_JOB_ID") {
            let job = self.job_of(&number);
            return Some(match sort % 2 {
                0 => {
                    let update = self.slurm.slurm("scontrol", &["update", &format!("jobid={job}"), "requeue=1"]);
                    let done = update.and_then(|_| self.slurm.slurm("scontrol", &["requeue", &job]));
                    format!("requeue of job {job}: {}", done.is_ok())
                }
                _ => format!("scancel of job {job}: {}", self.slurm.slurm("scancel", &[&job]).is_ok()),
            });
        }
        let pod = of("HOSTNAME").filter(|name| name.starts_with("drover-"))?;
        let args = ["delete", "pod", "-n", kubernetes::NAMESPACE, &pod, "--wait=false", "--request-timeout=5s"];
        Some(format!("deletion of pod {pod}: {}", self.kubernetes.kubectl(&args).is_ok()))
    }

    /// The job with a number of its own. The number of one job is that of its whole array.
    fn job_of(&self, number: &str) -> String {
        let jobs = self.slurm.slurm("squeue", &["-h", "-r", "-o", "%A %i"]).unwrap_or_default();
        let job = jobs.lines().find_map(|line| line.split_once(' ').filter(|(own, _)| *own == number));
        job.map_or_else(|| number.to_owned(), |(_, id)| id.to_owned())
    }

    /// Keeps what Slurm has said, and what is in its run directories.
    pub(super) fn keep_logs(&self, dir: &Path) -> Result<()> {
        for entry in fs::read_dir(self.slurm.dir.join("log"))?.flatten() {
            fs::copy(entry.path(), dir.join(entry.file_name()))?;
        }
        let runs = Run::new("ls", ["-lR".as_ref(), self.slurm.dir.join("runs").as_os_str()]).output()?;
        fs::write(dir.join("slurm-runs"), runs)?;
        let queue = self.slurm.slurm("squeue", &["-h", "-r", "-t", "all", "-o", "%i|%j|%T|%N|%r|%k"])?;
        fs::write(dir.join("slurm-queue"), queue).map_err(Into::into)
    }

    /// What must not be there when every job has been stopped.
    pub(super) fn left(&self) -> Result<Vec<String>> {
        let jobs = self.slurm.jobs()?.into_iter().map(|(id, state)| format!("Slurm's job {id}, {state}"));
        let pods = self.kubernetes.pods(kubernetes::LIVE)?;
        let pods = pods.iter().map(|pod: &Value| format!("pod {}", pod["metadata"]["name"]));
        Ok(jobs.chain(pods).collect())
    }
}
