//! From the spec to a running workload: the one-time steps.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use executor_proto::{Cgroup, ErrorCode, Failure, LogPolicy, PROTOCOL_VERSION, Spec, StateRecord, User, files};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::WaitOptions;

use crate::disk::{Durability, replace};
use crate::isolate::{self, Holder};
use crate::process::{self, ProcessStat};
use crate::pump::{Pump, open_fifo};
use crate::rotate::Writer;
use crate::sys::{self, Program, Stage};
use cgroup::Paths;

/// The result of a start.
pub(crate) struct Started {
    pub(crate) record: StateRecord,
    pub(crate) surroundings: Surroundings,
    pub(crate) pumps: Vec<Pump>,
}

/// The environment of every process of a task: the workload first, exec sessions later.
#[derive(Default)]
pub(crate) struct Surroundings {
    pub(crate) paths: Paths,
    env: Vec<CString>,
    cwd: CString,
    user: Option<User>,
    /// `None` if the workload shares the host's namespaces.
    pub(crate) holder: Option<Holder>,
}

impl Surroundings {
    fn of(spec: &Spec, paths: Paths) -> Result<Surroundings, Failure> {
        Ok(Surroundings {
            env: spec.env.iter().map(|e| c_string(e)).collect::<Result<_, _>>()?,
            cwd: c_string(&spec.cwd)?,
            user: spec.user.clone(),
            holder: match &spec.isolation {
                Some(isolation) => Some(Holder::start(isolation, &paths)?),
                None => None,
            },
            paths,
        })
    }

    /// Describes a process in this environment.
    pub(crate) fn program(
        &self,
        command: &[u8],
        args: &[Vec<u8>],
        stdio: [OwnedFd; 3],
        terminal: bool,
    ) -> Result<Program<'_>, Failure> {
        let mut env: Vec<&CStr> = self.env.iter().map(CString::as_c_str).collect();
        if terminal && !env.iter().any(|e| e.to_bytes().starts_with(b"TERM=")) {
            env.push(c"TERM=xterm");
        }
        Ok(Program {
            candidates: self.candidates(command)?,
            args: std::iter::once(command)
                .chain(args.iter().map(Vec::as_slice))
                .map(c_string)
                .collect::<Result<_, _>>()?,
            env,
            cwd: &self.cwd,
            stdio,
            terminal,
            cgroup: cgroup::open_unified(&self.paths).map_err(|e| os_failure("prepare the cgroup", &e))?,
            enter: cgroup::entries(&self.paths).map_err(|e| os_failure("prepare the cgroup", &e))?,
            user: self.user.as_ref(),
            oom_score_adj: None,
            confinement: self.holder.as_ref().map(Holder::confinement),
        })
    }

    /// Candidate paths of a program: a path stands for itself, a name is searched along the task's `PATH`.
    fn candidates(&self, command: &[u8]) -> Result<Vec<CString>, Failure> {
        let mut found = match self.holder {
            Some(_) => isolate::candidates(command),
            None => Vec::new(),
        };
        if command.contains(&b'/') {
            found.push(c_string(command)?);
            return Ok(found);
        }
        // The last entry counts, as in the workload itself.
        let path = self.env.iter().rev().find_map(|e| e.to_bytes().strip_prefix(b"PATH=")).unwrap_or(DEFAULT_PATH);
        let dirs = path.split(|b| *b == b':').filter(|dir| dir.starts_with(b"/"));
        for dir in dirs {
            found.push(c_string(&[dir, b"/", command].concat())?);
        }
        Ok(found)
    }
}

/// Search path of programs if the task's environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A [`Failure`] of kind `Os`.
pub(crate) fn os_failure(doing: &str, error: &io::Error) -> Failure {
    Failure {
        code: ErrorCode::Os.into(),
        message: format!("{doing}: {error}"),
        errno: cgroup::errno(error).unwrap_or(0),
        epoch: 0,
    }
}

/// Starts the workload of `spec`. After a failure nothing of it remains.
pub(crate) fn launch(spec: &Spec) -> Result<Started, Failure> {
    let record = StateRecord {
        protocol: PROTOCOL_VERSION,
        id: spec.id.clone(),
        boot_id: process::boot_id().map_err(|e| os_failure("read the boot id", &e))?,
        executor_pid: std::process::id() as i32,
        executor_start: start_of(std::process::id() as i32)?,
        started_at_ns: process::now_ns(),
        ..StateRecord::default()
    };
    match &spec.collect {
        Some(collect) => {
            let log = spec.log.as_ref().ok_or_else(|| invalid("a collector needs a log policy"))?;
            let fifos = [&collect.stdout_fifo, &collect.stderr_fifo].map(|f| PathBuf::from(OsStr::from_bytes(f)));
            let sources = fifos.map(|f| (open_fifo(&f), Some(f)));
            let mut pumps = Vec::new();
            for ((source, fifo), name) in sources.into_iter().zip([&log.stdout_name, &log.stderr_name]) {
                let source = source.map_err(|e| os_failure("open the fifo", &e))?;
                pumps.push(Pump::new(source, fifo, writer(log, name)?));
            }
            save(&record)?;
            Ok(Started { record, surroundings: Surroundings::default(), pumps })
        }
        None => {
            let mut wanted = spec.cgroup.clone().unwrap_or_default();
            if wanted.pids_max > 0 && spec.isolation.is_some() {
                // The holder counts, too.
                wanted.pids_max += 1;
            }
            let paths = Paths::of_spec(&wanted);
            let started = workload(spec, record, &wanted, &paths);
            if started.is_err() {
                cgroup::kill(&paths);
                // The cgroup can go only after its process.
                while matches!(rustix::process::wait(WaitOptions::empty()), Ok(Some(_))) {}
                let _ = cgroup::remove(&paths);
                let _ = std::fs::remove_file(files::STATE);
            }
            started
        }
    }
}

fn workload(spec: &Spec, mut record: StateRecord, wanted: &Cgroup, paths: &Paths) -> Result<Started, Failure> {
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let null: OwnedFd = null.map_err(|e| os_failure("open /dev/null", &e.into()))?;
    let (pumps, out, err) = match &spec.log {
        None => (Vec::new(), copy(&null)?, copy(&null)?),
        Some(log) => {
            let (out_source, out) = pipe()?;
            let (err_source, err) = pipe()?;
            let pumps = vec![
                Pump::new(out_source, None, writer(log, &log.stdout_name)?),
                Pump::new(err_source, None, writer(log, &log.stderr_name)?),
            ];
            (pumps, out, err)
        }
    };
    // First, so that everything made later can be found if this process is killed.
    record.launching = true;
    (record.cgroup, record.cgroup_v1) = paths.to_record();
    save(&record)?;
    cgroup::create(wanted).map_err(|e| os_failure("prepare the cgroup", &e))?;
    let surroundings = Surroundings::of(spec, paths.clone())?;
    let mut program = surroundings.program(&spec.command, &spec.args, [null, out, err], false)?;
    program.oom_score_adj = spec.oom_score_adj;
    // Moved into the call: the write ends of the pipes close here, so that they end with the workload.
    let waiting = sys::spawn(program).map_err(|e| os_failure("create the process", &e))?;
    record.workload_pid = waiting.pid;
    record.workload_start = start_of(waiting.pid)?;
    record.launching = false;
    save(&record)?;
    match waiting.go().map_err(|e| os_failure("start the process", &e))? {
        Ok(()) => Ok(Started { record, surroundings, pumps }),
        Err(failed) => Err(start_failure(failed)),
    }
}

/// Why a process did not become its program.
pub(crate) fn start_failure((stage, errno): sys::Failed) -> Failure {
    let code = if stage == Stage::Exec { ErrorCode::Exec } else { ErrorCode::Os };
    let why = io::Error::from_raw_os_error(errno);
    Failure { code: code.into(), message: format!("{}: {why}", stage.describe()), errno, epoch: 0 }
}

pub(crate) fn invalid(message: &str) -> Failure {
    Failure { code: ErrorCode::Invalid.into(), message: message.into(), errno: 0, epoch: 0 }
}

fn save(record: &StateRecord) -> Result<(), Failure> {
    // Not synced: after a power loss no process is left for it to name.
    replace(Path::new("."), files::STATE, record.to_json().as_bytes(), Durability::Atomic)
        .map_err(|e| os_failure("write executor.json", &e))
}

fn start_of(pid: i32) -> Result<u64, Failure> {
    let stat = ProcessStat::of(pid).ok_or_else(|| os_failure("read /proc", &io::ErrorKind::NotFound.into()))?;
    Ok(stat.start)
}

fn writer(log: &LogPolicy, name: &str) -> Result<Writer, Failure> {
    let dir = Path::new(OsStr::from_bytes(&log.dir));
    Writer::open(dir, name, log.max_files, log.max_file_bytes)
        .map_err(|e| os_failure(&format!("open log {name} in {}", dir.display()), &e))
}

fn pipe() -> Result<(OwnedFd, OwnedFd), Failure> {
    let made = pipe_with(PipeFlags::CLOEXEC).and_then(|(read, write)| {
        // Only our end: the workload expects blocking writes.
        rustix::io::ioctl_fionbio(&read, true)?;
        Ok((read, write))
    });
    made.map_err(|e| os_failure("create a pipe", &e.into()))
}

pub(crate) fn copy(fd: &OwnedFd) -> Result<OwnedFd, Failure> {
    fd.try_clone().map_err(|e| os_failure("copy a descriptor", &e))
}

fn c_string(bytes: &[u8]) -> Result<CString, Failure> {
    CString::new(bytes).map_err(|_| invalid("command, arguments, environment and directory must not hold NUL bytes"))
}
