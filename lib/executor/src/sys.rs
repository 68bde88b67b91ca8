//! The system calls that no safe wrapper offers: fork, clone3 into a cgroup, exec, signalfd. The only module with `unsafe`.
//!
//! The executor is single-threaded from its first to its last instruction, so a forked child may run ordinary code: no
//! lock can be held by a thread that does not exist in it.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use executor_proto::User;

/// Which side of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The one that called.
    Parent,
    /// The new process.
    Child,
}

/// Splits the process in two. Must only be called while it has one thread.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: fork has no memory preconditions. One thread exists, so the child's copy of memory is consistent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        _ => Ok(Fork::Parent),
    }
}

/// Ends the process without running destructors or flushing: they belong to the other side of a fork.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

/// Takes over a descriptor that this process was started with.
pub fn inherited(fd: i32) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC works on any number and fails with EBADF when it is not open.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: fcntl has just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Closes every descriptor from `first` on. Must be called before this process has opened any of its own.
pub fn close_from(first: u32) {
    // SAFETY: close_range takes plain numbers. By the contract nothing in this process owns one of those descriptors. On
    // kernels without it (before 5.9) the descriptors stay open, which leaks them but breaks nothing.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32);
    }
}

/// Blocks the signals that must not end an executor and returns the descriptor that reports SIGCHLD and SIGHUP.
pub fn signal_fd() -> io::Result<OwnedFd> {
    // SAFETY: the sets are initialised by sigemptyset before use; signalfd and sigprocmask only read them.
    unsafe {
        let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(blocked.as_mut_ptr());
        for signal in [libc::SIGCHLD, libc::SIGHUP, libc::SIGTERM, libc::SIGINT, libc::SIGQUIT, libc::SIGPIPE] {
            libc::sigaddset(blocked.as_mut_ptr(), signal);
        }
        if libc::sigprocmask(libc::SIG_BLOCK, blocked.as_ptr(), std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut reported = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(reported.as_mut_ptr());
        libc::sigaddset(reported.as_mut_ptr(), libc::SIGCHLD);
        libc::sigaddset(reported.as_mut_ptr(), libc::SIGHUP);
        let fd = libc::signalfd(-1, reported.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// What has arrived on a [`signal_fd`] since the last call: whether a SIGHUP was among it.
pub fn take_signals(fd: &OwnedFd) -> bool {
    let mut hangup = false;
    let mut info = [0u8; std::mem::size_of::<libc::signalfd_siginfo>()];
    while matches!(rustix::io::read(fd, &mut info), Ok(n) if n == info.len()) {
        // The signal number is the first field.
        let number = u32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
        hangup |= number == libc::SIGHUP as u32;
    }
    hangup
}

/// CPU time of all children that have ended and been waited for: user and system, in nanoseconds.
pub fn reaped_cpu_ns() -> (u64, u64) {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the structure that it is given; a zeroed one is valid should it fail.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |t: libc::timeval| t.tv_sec as u64 * 1_000_000_000 + t.tv_usec as u64 * 1000;
    (ns(usage.ru_utime), ns(usage.ru_stime))
}

/// All that a new process needs between clone and exec, prepared beforehand.
pub struct Program<'a> {
    /// Paths at which the program may lie; the first that can be executed is.
    pub candidates: Vec<CString>,
    /// Its arguments, its own name first.
    pub args: Vec<CString>,
    /// `NAME=value` entries.
    pub env: Vec<&'a CStr>,
    /// Working directory.
    pub cwd: &'a CStr,
    /// Standard input, output and error.
    pub stdio: [OwnedFd; 3],
    /// Standard input is a terminal and becomes the session's own.
    pub terminal: bool,
    /// Directory of a version 2 cgroup to be born in.
    pub cgroup: Option<File>,
    /// `cgroup.procs` files to enter.
    pub enter: Vec<File>,
    /// Whom to become.
    pub user: Option<&'a User>,
    /// Value for `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
}

/// What a new process was doing when it failed. The discriminants cross the process boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Entering a version 1 cgroup.
    Cgroup = 1,
    /// Setting `oom_score_adj`.
    OomScore = 2,
    /// Taking over standard input, output and error.
    Stdio = 3,
    /// Changing the working directory.
    Chdir = 4,
    /// Becoming the user.
    User = 5,
    /// Tying its life to the executor's.
    Parent = 6,
    /// Executing the program.
    Exec = 7,
}

impl Stage {
    const ALL: [Stage; 7] = [Stage::Cgroup, Stage::OomScore, Stage::Stdio, Stage::Chdir, Stage::User, Stage::Parent, Stage::Exec];

    /// For messages.
    pub fn describe(self) -> &'static str {
        match self {
            Stage::Cgroup => "entering the cgroup",
            Stage::OomScore => "setting oom_score_adj",
            Stage::Stdio => "connecting standard input and output",
            Stage::Chdir => "changing to the working directory",
            Stage::User => "changing to the user",
            Stage::Parent => "tying it to the executor",
            Stage::Exec => "executing the program",
        }
    }
}

/// A process that has been created and waits for [`Waiting::go`] before it does anything.
pub struct Waiting {
    /// Its pid, which is also its session.
    pub pid: i32,
    line: File,
}

/// Why a program did not start: in which stage, with which error number.
pub type Failed = (Stage, i32);

impl Waiting {
    /// Lets the process become the program. Returns when that has happened or failed.
    pub fn go(mut self) -> io::Result<Result<(), Failed>> {
        self.line.write_all(&[1])?;
        let mut report = Vec::new();
        // Both the exec (by close-on-exec) and death end the stream.
        self.line.read_to_end(&mut report)?;
        let [stage, errno @ ..] = report.as_slice() else {
            return Ok(Ok(()));
        };
        let stage = Stage::ALL.into_iter().find(|s| *s as u8 == *stage).unwrap_or(Stage::Exec);
        let errno = <[u8; 4]>::try_from(errno).map_or(0, i32::from_ne_bytes);
        Ok(Err((stage, errno)))
    }
}

/// Creates the process for `program`. Must only be called while this process has one thread.
pub fn spawn(program: Program<'_>) -> io::Result<Waiting> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let (ours, theirs) = (File::from(OwnedFd::from(ours)), File::from(OwnedFd::from(theirs)));
    let parent = std::process::id() as i32;
    let cgroup = program.cgroup.as_ref().map(|f| f.as_raw_fd());
    let pid = match clone_into(cgroup) {
        // Kernels before 5.7 and sandboxes that hide clone3: fork, and enter by writing.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EPERM | libc::E2BIG)) => {
            // SAFETY: as in `fork`.
            match unsafe { libc::fork() } {
                -1 => return Err(io::Error::last_os_error()),
                0 => become_program(&program, theirs, parent, true),
                pid => pid,
            }
        }
        Err(e) => return Err(e),
        Ok(0) => become_program(&program, theirs, parent, false),
        Ok(pid) => pid,
    };
    Ok(Waiting { pid, line: ours })
}

/// The library's constant is too narrow for its value.
const CLONE_INTO_CGROUP: u64 = 1 << 33;

/// Like fork, but born inside the cgroup when there is one.
fn clone_into(cgroup: Option<i32>) -> io::Result<i32> {
    // SAFETY: clone_args is plain data and zero means "not used" for every field. Without CLONE_VM and without a stack this
    // is a fork: the child continues here on its own copy of memory. One thread exists.
    let pid = unsafe {
        let mut args: libc::clone_args = std::mem::zeroed();
        args.exit_signal = libc::SIGCHLD as u64;
        if let Some(fd) = cgroup {
            args.flags = CLONE_INTO_CGROUP;
            args.cgroup = fd as u64;
        }
        libc::syscall(libc::SYS_clone3, &raw const args, std::mem::size_of::<libc::clone_args>())
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
}

/// The child's side: never returns.
fn become_program(program: &Program<'_>, mut line: File, parent: i32, enter_unified: bool) -> ! {
    let failed = match prepare(program, &mut line, parent, enter_unified) {
        Ok(()) => {
            let mut argv: Vec<*const libc::c_char> = program.args.iter().map(|a| a.as_ptr()).collect();
            argv.push(std::ptr::null());
            let mut envp: Vec<*const libc::c_char> = program.env.iter().map(|e| e.as_ptr()).collect();
            envp.push(std::ptr::null());
            let mut error = io::Error::from_raw_os_error(libc::ENOENT);
            for path in &program.candidates {
                // SAFETY: path and both arrays are null-terminated and outlive the call.
                unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
                let failed = io::Error::last_os_error();
                match failed.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR) => {}
                    // Another directory of the search path may hold one that may be executed.
                    Some(libc::EACCES) => error = failed,
                    _ => {
                        error = failed;
                        break;
                    }
                }
            }
            (Stage::Exec, error)
        }
        Err(failed) => failed,
    };
    let mut report = vec![failed.0 as u8];
    report.extend_from_slice(&failed.1.raw_os_error().unwrap_or(0).to_ne_bytes());
    let _ = line.write_all(&report);
    exit_now(127)
}

fn prepare(program: &Program<'_>, line: &mut File, parent: i32, enter_unified: bool) -> Result<(), (Stage, io::Error)> {
    let at = |stage: Stage| move |e: io::Error| (stage, e);
    let check = |result: libc::c_long| {
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let oom = |value: i32| {
        let mut file = std::fs::OpenOptions::new().write(true).open("/proc/self/oom_score_adj")?;
        file.write_all(value.to_string().as_bytes())
    };
    // An executor that dies before the record is written must not leave a workload that no record names: the read ends
    // without a byte then.
    tie_to(parent).map_err(at(Stage::Parent))?;
    line.read_exact(&mut [0]).map_err(at(Stage::Parent))?;
    // SAFETY: setsid and the signal calls work on this process alone; the set is initialised by sigemptyset.
    unsafe {
        libc::setsid();
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none = MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
    for mut procs in &program.enter {
        procs.write_all(b"0").map_err(at(Stage::Cgroup))?;
    }
    if let Some(dir) = program.cgroup.as_ref().filter(|_| enter_unified) {
        let procs = rustix::fs::openat(dir, "cgroup.procs", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty())
            .map_err(|e| (Stage::Cgroup, e.into()))?;
        File::from(procs).write_all(b"0").map_err(at(Stage::Cgroup))?;
    }
    if let Some(value) = program.oom_score_adj {
        oom(value).map_err(at(Stage::OomScore))?;
    }
    for (target, fd) in program.stdio.iter().enumerate() {
        // SAFETY: dup2 takes numbers; `fd` is open, and 0 to 2 are owned by nobody in this process. All of `stdio` lie above
        // 2, so none is overwritten before its turn.
        check(unsafe { libc::dup2(fd.as_raw_fd(), target as i32) }.into()).map_err(at(Stage::Stdio))?;
    }
    if program.terminal {
        // SAFETY: the request takes a number. This process leads a session without a terminal.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }.into()).map_err(at(Stage::Stdio))?;
    }
    // SAFETY: a null-terminated path.
    check(unsafe { libc::chdir(program.cwd.as_ptr()) }.into()).map_err(at(Stage::Chdir))?;
    if let Some(user) = program.user {
        // The raw calls: the library's versions tell other threads, of which there are none.
        // SAFETY: the list is as long as said; the other arguments are numbers.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr())).map_err(at(Stage::User))?;
            check(libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid)).map_err(at(Stage::User))?;
            check(libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid)).map_err(at(Stage::User))?;
        }
        // Changing credentials has cleared it.
        tie_to(parent).map_err(at(Stage::Parent))?;
    }
    Ok(())
}

/// Has the kernel kill this process when the executor dies, also when it already has.
fn tie_to(parent: i32) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let present = rustix::process::getppid().map_or(0, |p| p.as_raw_nonzero().get());
    if present == parent { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// A borrowed view of a descriptor number that is known to be open for the whole life of the process.
pub fn standard(fd: i32) -> BorrowedFd<'static> {
    debug_assert!((0..=2).contains(&fd));
    // SAFETY: 0, 1 and 2 are never closed by this program, only replaced by dup2.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
