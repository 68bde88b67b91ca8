//! The queue: a file of jobs under a lock.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Loud;
use crate::condition::{Expression, Is};

/// A job: what the schedd keeps of it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) ad: Map<String, Value>,
    /// Of the description: the program and its arguments, directory, output, error.
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) dir: String,
    pub(crate) output: String,
    pub(crate) error: String,
    pub(crate) vacate_seconds: i64,
    pub(crate) leave_in_queue: String,
    pub(crate) periodic_remove: String,
    /// Number of the main process, while the shadow has one.
    pub(crate) pid: Option<i32>,
    /// When the processes are killed that a signal has not ended.
    pub(crate) kill_at: Option<i64>,
    /// What a test has done to it, for the shadow.
    pub(crate) evicted: bool,
    pub(crate) lost: bool,
}

impl Job {
    pub(crate) fn int(&self, name: &str) -> i64 {
        self.ad.get(name).and_then(Value::as_i64).unwrap_or_default()
    }

    pub(crate) fn text(&self, name: &str) -> &str {
        self.ad.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub(crate) fn status(&self) -> i64 {
        self.int("JobStatus")
    }

    pub(crate) fn set(&mut self, name: &str, value: impl Into<Value>) {
        self.ad.insert(name.to_owned(), value.into());
    }

    pub(crate) fn become_status(&mut self, status: i64) {
        self.set("JobStatus", status);
        self.set("EnteredCurrentStatus", now());
    }

    /// The machine has it no more.
    pub(crate) fn leave_host(&mut self) {
        if let Some(host) = self.ad.remove("RemoteHost") {
            self.ad.insert("LastRemoteHost".to_owned(), host);
        }
        (self.pid, self.kill_at) = (None, None);
    }

    pub(crate) fn has_host(&self) -> bool {
        self.ad.contains_key("RemoteHost")
    }
}

pub(crate) fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs().cast_signed())
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Jobs {
    last: u64,
    pub(crate) jobs: BTreeMap<u64, Job>,
}

impl Jobs {
    pub(crate) fn add(&mut self, mut job: Job) -> u64 {
        self.last += 1;
        job.set("ClusterId", self.last);
        job.set("ProcId", 0);
        self.jobs.insert(self.last, job);
        self.last
    }

    /// What the schedd does by itself.
    fn expire(&mut self) -> Result<Vec<u64>, Loud> {
        let mut out = Vec::new();
        for (id, job) in &mut self.jobs {
            let holds = |job: &Job, text: &str| match text {
                "" => Ok(false),
                text => Expression::read(text)?.value(&job.ad, now()).map(|is| is == Is::Bool(true)),
            };
            if matches!(job.status(), 1 | 2 | 5) && holds(job, &job.periodic_remove.clone())? {
                job.become_status(3);
                job.set("RemoveReason", "The job attribute PeriodicRemove expression evaluated to TRUE");
            }
            if matches!(job.status(), 3 | 4) && !job.has_host() && !holds(job, &job.leave_in_queue.clone())? {
                out.push(*id);
            }
        }
        Ok(out)
    }
}

/// The directory that is the pool.
pub(crate) struct Pool(pub(crate) PathBuf);

impl Pool {
    /// A switch of a test: the text of its file.
    pub(crate) fn switch(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.join(name)).ok()
    }

    fn read(path: &Path) -> Result<Jobs, Loud> {
        match fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text).map_err(|why| Loud(format!("the fake's queue: {why}"))),
            Err(_) => Ok(Jobs::default()),
        }
    }

    /// Reads a job as it is.
    pub(crate) fn peek(&self, id: u64) -> Result<Option<Job>, Loud> {
        Ok(Self::read(&self.0.join("jobs.json"))?.jobs.remove(&id))
    }

    /// Does something with the queue, alone: the schedd does one thing after the other.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Jobs) -> Result<T, Loud>) -> Result<T, Loud> {
        let failed = |why: std::io::Error| Loud(format!("the fake's queue: {why}"));
        let lock = fs::OpenOptions::new().read(true).write(true).open(self.0.join("lock")).map_err(failed)?;
        lock.lock().map_err(failed)?;
        let path = self.0.join("jobs.json");
        let mut jobs = Self::read(&path)?;
        let before = serde_json::to_string(&jobs).map_err(|why| Loud(why.to_string()))?;
        for id in jobs.expire()? {
            jobs.jobs.remove(&id);
        }
        let done = work(&mut jobs)?;
        for id in jobs.expire()? {
            jobs.jobs.remove(&id);
        }
        let after = serde_json::to_string(&jobs).map_err(|why| Loud(why.to_string()))?;
        if before != after || !path.exists() {
            let temporary = self.0.join(format!("jobs.json.{}", std::process::id()));
            fs::write(&temporary, after).map_err(failed)?;
            fs::set_permissions(&temporary, fs::Permissions::from_mode(0o666)).map_err(failed)?;
            fs::rename(&temporary, &path).map_err(failed)?;
        }
        Ok(done)
    }
}
