//! Exec sessions: programs that run in a workload for a controller.
//!
//! The controller passes the ends of its own pipes or terminal. So the executor starts the program and reports its end,
//! but is never between the two. A session is a part of the task: same cgroup, same isolation, and it ends with the
//! task.

use executor_proto::{Exec, Failure, SessionEnd, encode_frame};
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, Signal, WaitStatus, kill_process, kill_process_group};

use crate::launch::{Surroundings, copy, invalid, os_failure, start_failure};
use crate::process;
use crate::sys;

/// Limit of sessions; each costs a descriptor, and there are 1024.
const MAX_SESSIONS: usize = 64;

/// One running session.
pub(crate) struct Session {
    /// Pid of its first process, which is also its kernel session.
    pid: i32,
    /// Reports end of file when the controller goes.
    pub(crate) control: OwnedFd,
}

impl Session {
    /// Starts the program with the request's descriptors.
    pub(crate) fn start(
        exec: &Exec,
        fds: Vec<OwnedFd>,
        running: usize,
        surroundings: &Surroundings,
    ) -> Result<Session, Failure> {
        if running >= MAX_SESSIONS {
            return Err(invalid("there are 64 exec sessions already; end some of them"));
        }
        let missing = || invalid("the descriptors that belong to an exec request are missing");
        let mut fds = fds.into_iter();
        let control = fds.next().ok_or_else(missing)?;
        let stdin = fds.next().ok_or_else(missing)?;
        let (stdout, stderr) = match exec.tty {
            true => (copy(&stdin)?, copy(&stdin)?),
            false => (fds.next().ok_or_else(missing)?, fds.next().ok_or_else(missing)?),
        };
        let program = surroundings.program(&exec.command, &exec.args, [stdin, stdout, stderr], exec.tty)?;
        let waiting = sys::spawn(program).map_err(|e| os_failure("create the process", &e))?;
        let pid = waiting.pid;
        match waiting.go().map_err(|e| os_failure("start the process", &e))? {
            Ok(()) => Ok(Session { pid, control }),
            // The child exits and is reaped like any orphan.
            Err(failed) => Err(start_failure(failed)),
        }
    }

    /// Whether `pid` is its first process.
    pub(crate) fn is(&self, pid: Pid) -> bool {
        self.pid == pid.as_raw_nonzero().get()
    }

    /// Its first process has ended: tells the controller. Processes that it has left belong to the task.
    pub(crate) fn ended(self, status: WaitStatus) {
        let signal = status.terminating_signal().unwrap_or(0);
        let mut frame = Vec::new();
        encode_frame(&SessionEnd { exit_code: status.exit_status().unwrap_or(128 + signal), signal }, &mut frame);
        // An empty socket takes a few bytes at once; a controller that has gone needs none.
        let _ = rustix::net::send(&self.control, &frame, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// The controller has gone, and nothing else would end the session: kills it with its jobs.
    pub(crate) fn kill(&self, surroundings: &Surroundings) {
        let Some(leader) = Pid::from_raw(self.pid) else {
            return;
        };
        let _ = kill_process_group(leader, Signal::KILL);
        let _ = kill_process(leader, Signal::KILL);
        let tree = match surroundings.paths.is_empty() {
            true => process::all().unwrap_or_default(),
            false => cgroup::members(&surroundings.paths).into_iter().filter_map(process::ProcessStat::of).collect(),
        };
        for pid in tree.iter().filter(|p| p.session == self.pid).filter_map(|p| Pid::from_raw(p.pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Whether the controller has closed its end. It sends nothing, so anything readable is the end.
    pub(crate) fn is_abandoned(&self) -> bool {
        let mut byte = [0u8; 1];
        let seen = rustix::net::recv(&self.control, &mut byte, RecvFlags::DONTWAIT);
        !matches!(seen, Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR))
    }
}
