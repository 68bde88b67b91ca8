//! System calls without a safe wrapper: fork, clone3 into a cgroup, exec, signalfd. The only module with `unsafe`.
//!
//! The executor is single-threaded for life. So a forked child may run ordinary code: no absent thread can hold a lock.
#![allow(unsafe_code, reason = "no safe wrapper offers these calls")]

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use executor_proto::User;
use rustix::thread::{CapabilitySet, CapabilitySets, ThreadNameSpaceType};

/// Which side of a fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fork {
    /// The one that called.
    Parent,
    /// The new process.
    Child,
}

/// Forks. Must only be called while the process has one thread.
///
/// # Errors
/// The kernel's refusal: there is no child then.
pub fn fork() -> io::Result<Fork> {
    // SAFETY: fork has no memory preconditions. One thread exists, so the child's copy of memory is consistent.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Fork::Child),
        _ => Ok(Fork::Parent),
    }
}

/// Exits without destructors or flushes: they belong to the other side of a fork.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(status) }
}

/// Takes over a descriptor that this process was started with.
///
/// # Errors
/// When the descriptor is not open.
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
    // SAFETY: close_range takes plain numbers. By the contract nothing in this process owns one of those descriptors.
    // On kernels without it (before 5.9) the descriptors stay open, which leaks them but breaks nothing.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32);
    }
}

/// Blocks the signals that must not end an executor, and returns the descriptor that reports SIGCHLD and SIGHUP.
///
/// # Errors
/// When the kernel gives no descriptor. The signals are blocked all the same.
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

/// Reads all signals from a [`signal_fd`]: whether a SIGHUP was among them.
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

/// CPU time of all reaped children: user and system, in nanoseconds.
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

/// Everything that a new process needs between clone and exec, prepared beforehand.
pub struct Program<'a> {
    /// Candidate paths of the program; the first executable one counts.
    pub candidates: Vec<CString>,
    /// Its arguments, its own name first.
    pub args: Vec<CString>,
    /// `NAME=value` entries.
    pub env: Vec<&'a CStr>,
    /// Working directory.
    pub cwd: &'a CStr,
    /// Standard input, output and error.
    pub stdio: [OwnedFd; 3],
    /// Standard input is a terminal and becomes the session's controlling one.
    pub terminal: bool,
    /// Directory of a version 2 cgroup for the clone.
    pub cgroup: Option<File>,
    /// `cgroup.procs` files to enter.
    pub enter: Vec<File>,
    /// The user to become.
    pub user: Option<&'a User>,
    /// Value for `oom_score_adj`.
    pub oom_score_adj: Option<i32>,
    /// Namespaces to join and rights to drop.
    pub confinement: Option<Confinement<'a>>,
}

/// Confinement of a process of an isolated workload.
#[derive(Clone, Copy)]
pub struct Confinement<'a> {
    /// Process whose namespaces it joins.
    pub holder: BorrowedFd<'a>,
    /// The namespaces to join.
    pub namespaces: ThreadNameSpaceType,
    /// Its children are in another pid namespace, so they do not see it as their parent.
    pub private_pids: bool,
    /// Bounding set of capabilities.
    pub capabilities: u64,
    /// Capabilities of users other than root.
    pub ambient: u64,
    /// Executing a program grants no rights.
    pub no_new_privs: bool,
    /// System call filter, as `sock_filter`s.
    pub seccomp: &'a [u8],
}

/// The step in which a new process failed. The discriminants cross the process boundary.
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
    /// Joining the namespaces.
    Namespaces = 8,
    /// Giving up capabilities.
    Capabilities = 9,
    /// Installing the system call filter.
    Seccomp = 10,
}

impl Stage {
    const ALL: [Stage; 10] = [
        Stage::Cgroup,
        Stage::OomScore,
        Stage::Stdio,
        Stage::Chdir,
        Stage::User,
        Stage::Parent,
        Stage::Exec,
        Stage::Namespaces,
        Stage::Capabilities,
        Stage::Seccomp,
    ];

    /// The step's name for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Stage::Cgroup => "entering the cgroup",
            Stage::OomScore => "setting oom_score_adj",
            Stage::Stdio => "connecting standard input and output",
            Stage::Chdir => "changing to the working directory",
            Stage::User => "changing to the user",
            Stage::Parent => "tying it to the executor",
            Stage::Exec => "executing the program",
            Stage::Namespaces => "joining the namespaces",
            Stage::Capabilities => "giving up capabilities",
            Stage::Seccomp => "installing the system call filter",
        }
    }
}

/// A new process that waits for [`Waiting::go`] before it does anything.
pub struct Waiting {
    /// Its pid, which is also its session.
    pub pid: i32,
    line: File,
}

/// Why a program did not start: the step and the error number.
pub type Failed = (Stage, i32);

impl Waiting {
    /// Lets the process execute its program. Returns when that has happened or failed.
    ///
    /// # Errors
    /// The outer one when the process has vanished; the inner one is the step at which the program did not start.
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
///
/// # Errors
/// When there is no new process. Its own failures come with [`Waiting::go`].
pub fn spawn(program: Program<'_>) -> io::Result<Waiting> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let (ours, theirs) = (File::from(OwnedFd::from(ours)), File::from(OwnedFd::from(theirs)));
    let parent = if program.confinement.is_some_and(|c| c.private_pids) { 0 } else { std::process::id() as i32 };
    let cgroup = program.cgroup.as_ref().map(|f| f.as_raw_fd());
    let pid = match clone_into(cgroup, 0, None) {
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

/// Forks into the cgroup, if there is one, and into new namespaces. Stores the child's pidfd on request.
fn clone_into(cgroup: Option<i32>, namespaces: u64, pidfd: Option<&mut i32>) -> io::Result<i32> {
    // SAFETY: clone_args is plain data and zero means "not used" for every field. Without CLONE_VM and without a stack
    // this is a fork: the child continues here on its own copy of memory. One thread exists. The kernel writes an int
    // to `pidfd`, which is borrowed for the call.
    let pid = unsafe {
        let mut args: libc::clone_args = std::mem::zeroed();
        args.exit_signal = libc::SIGCHLD as u64;
        args.flags = namespaces;
        if let Some(pidfd) = pidfd {
            args.flags |= libc::CLONE_PIDFD as u64;
            args.pidfd = std::ptr::from_mut(pidfd) as u64;
        }
        if let Some(fd) = cgroup {
            args.flags |= CLONE_INTO_CGROUP;
            args.cgroup = fd as u64;
        }
        libc::syscall(libc::SYS_clone3, &raw const args, std::mem::size_of::<libc::clone_args>())
    };
    if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(pid as i32) }
}

/// Namespaces that a [`holder`] makes besides that of mounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewNamespaces {
    /// Process ids.
    pub pids: bool,
    /// System V ipc and message queues.
    pub ipc: bool,
    /// Name of the host.
    pub hostname: bool,
}

/// Creates a process in new namespaces: `None` in it, its pid and pidfd here. Must only be called while this process
/// has one thread.
///
/// # Errors
/// When there is no new process, for want of rights say.
pub fn holder(new: NewNamespaces, cgroup: Option<&File>) -> io::Result<Option<(i32, OwnedFd)>> {
    let mut namespaces = libc::CLONE_NEWNS as u64;
    for (wanted, flag) in
        [(new.pids, libc::CLONE_NEWPID), (new.ipc, libc::CLONE_NEWIPC), (new.hostname, libc::CLONE_NEWUTS)]
    {
        namespaces |= if wanted { flag as u64 } else { 0 };
    }
    let mut pidfd = -1;
    match clone_into(cgroup.map(|f| f.as_raw_fd()), namespaces, Some(&mut pidfd))? {
        0 => Ok(None),
        // SAFETY: the kernel has just made this descriptor for us.
        pid => Ok(Some((pid, unsafe { OwnedFd::from_raw_fd(pidfd) }))),
    }
}

/// Gives the calling thread mounts of its own.
///
/// # Errors
/// The kernel's refusal.
pub fn unshare_mounts() -> io::Result<()> {
    // SAFETY: concerns the root, the directory and the mounts of this thread, no memory and no descriptors.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The rest of a holder's life: it keeps its namespaces. As the first process of a pid namespace it adopts orphans,
/// which the kernel then reaps. It ends with the executor.
pub fn hold() -> ! {
    close_from(0);
    // SAFETY: signal and pause concern this process alone.
    unsafe {
        libc::signal(libc::SIGCHLD, libc::SIG_IGN);
        loop {
            libc::pause();
        }
    }
}

/// Properties of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountAttributes {
    /// No writing.
    pub read_only: bool,
    /// No device files.
    pub no_devices: bool,
    /// Propagation of mounts below it: a flag of mount(2); 0 = unchanged.
    pub propagation: u64,
}

/// Changes the properties of the mount `tree` and of all below it.
///
/// # Errors
/// The kernel's refusal: nothing is changed then.
pub fn set_mount_attributes(tree: BorrowedFd<'_>, attributes: MountAttributes) -> io::Result<()> {
    const EMPTY_PATH: u32 = libc::AT_EMPTY_PATH as u32;
    const RECURSIVE: u32 = 0x8000;
    const READ_ONLY: u64 = 0x1;
    const NO_DEVICES: u64 = 0x4;
    let mut set = 0;
    for (wanted, flag) in [(attributes.read_only, READ_ONLY), (attributes.no_devices, NO_DEVICES)] {
        set |= if wanted { flag } else { 0 };
    }
    // struct mount_attr: bits to set, bits to clear, propagation, user namespace.
    let attr: [u64; 4] = [set, 0, attributes.propagation, 0];
    // SAFETY: the path is empty and null-terminated, `attr` has the size that is told; both outlive the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            EMPTY_PATH | RECURSIVE,
            attr.as_ptr(),
            std::mem::size_of_val(&attr),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Installs a system call filter for this process and its descendants.
fn install_filter(filter: &[u8]) -> io::Result<()> {
    let instructions: Vec<libc::sock_filter> = filter
        .as_chunks::<8>()
        .0
        .iter()
        .map(|b| libc::sock_filter {
            code: u16::from_ne_bytes([b[0], b[1]]),
            jt: b[2],
            jf: b[3],
            k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        })
        .collect();
    let len = u16::try_from(instructions.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    let program = libc::sock_fprog { len, filter: instructions.as_ptr().cast_mut() };
    // SAFETY: the kernel reads `len` instructions and checks them; both structures outlive the call.
    let done = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Joins the namespaces and drops capabilities outside the bounding set. Still root afterwards.
fn confine(confinement: &Confinement<'_>) -> Result<(), (Stage, io::Error)> {
    rustix::thread::move_into_thread_name_spaces(confinement.holder, confinement.namespaces)
        .map_err(|e| (Stage::Namespaces, e.into()))?;
    for capability in 0..64 {
        if confinement.capabilities & (1 << capability) != 0 {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << capability)) {
            // After the last one that this kernel knows.
            Err(rustix::io::Errno::INVAL) => break,
            other => other.map_err(|e| (Stage::Capabilities, e.into()))?,
        }
    }
    if confinement.no_new_privs {
        rustix::thread::set_no_new_privs(true).map_err(|e| (Stage::Seccomp, e.into()))?;
    }
    if !confinement.seccomp.is_empty() {
        // While this process may do so without no_new_privs. The filter allows the following calls.
        install_filter(confinement.seccomp).map_err(|e| (Stage::Seccomp, e))?;
    }
    Ok(())
}

/// Reduces the process's capabilities to `kept`; `ambient` says whether they survive an exec.
fn keep_capabilities(kept: u64, ambient: bool) -> rustix::io::Result<()> {
    let known = rustix::thread::capabilities(None)?.permitted;
    let kept = known & CapabilitySet::from_bits_retain(kept);
    let inheritable = if ambient { kept } else { CapabilitySet::empty() };
    rustix::thread::set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable })?;
    if ambient {
        for capability in kept.iter() {
            rustix::thread::configure_capability_in_ambient_set(capability, true)?;
        }
    }
    Ok(())
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
                let failed = execute(path, &argv, &envp);
                match failed.raw_os_error() {
                    Some(libc::ENOENT | libc::ENOTDIR) => {}
                    // Another directory of the search path may hold an executable one.
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

/// How often a program is tried that somebody has open for writing, and the pause before the next attempt in
/// milliseconds.
const BUSY: (u32, libc::c_int) = (1000, 2);

/// Executes a program; returns only with the reason why not. Both arrays end with a null pointer.
///
/// A program that was just downloaded may be busy for a moment: a process that was forked meanwhile inherits the open
/// file until it executes its own program.
fn execute(path: &CStr, argv: &[*const libc::c_char], envp: &[*const libc::c_char]) -> io::Error {
    let (attempts, pause) = BUSY;
    let mut failed = io::Error::from_raw_os_error(libc::ETXTBSY);
    for _ in 0..attempts {
        // SAFETY: path and both arrays are null-terminated and outlive the call.
        unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
        failed = io::Error::last_os_error();
        if failed.raw_os_error() != Some(libc::ETXTBSY) {
            break;
        }
        // SAFETY: no descriptors, so only time passes. A filter that forbids the call only makes the attempts shorter.
        unsafe { libc::poll(std::ptr::null_mut(), 0, pause) };
    }
    failed
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
    // If the executor dies before it writes the record, no workload without a record may stay: the read then ends
    // without a byte.
    tie_to(parent).map_err(at(Stage::Parent))?;
    line.read_exact(&mut [0]).map_err(at(Stage::Parent))?;
    // SAFETY: setsid and the signal calls work on this process alone; the set is initialised by sigemptyset.
    unsafe {
        libc::setsid();
        // Ignored signals stay ignored over exec, and an agent started with nohup ignores SIGHUP. Signals that cannot
        // be set return an error and need no change.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
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
        // SAFETY: dup2 takes numbers; `fd` is open, and 0 to 2 are owned by nobody in this process. All of `stdio` lie
        // above 2, so none is overwritten before its turn.
        check(unsafe { libc::dup2(fd.as_raw_fd(), target as i32) }.into()).map_err(at(Stage::Stdio))?;
    }
    if program.terminal {
        // SAFETY: the request takes a number. This process leads a session without a terminal.
        check(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) }.into()).map_err(at(Stage::Stdio))?;
    }
    if let Some(confinement) = &program.confinement {
        confine(confinement)?;
    }
    // SAFETY: a null-terminated path.
    check(unsafe { libc::chdir(program.cwd.as_ptr()) }.into()).map_err(at(Stage::Chdir))?;
    if program.confinement.is_some_and(|c| c.ambient != 0) {
        rustix::thread::set_keep_capabilities(true).map_err(|e| (Stage::Capabilities, e.into()))?;
    }
    if let Some(user) = program.user {
        // The raw calls: the library's versions tell other threads, of which there are none.
        // SAFETY: the list is as long as said; the other arguments are numbers.
        unsafe {
            check(libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()))
                .map_err(at(Stage::User))?;
            check(libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid)).map_err(at(Stage::User))?;
            check(libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid)).map_err(at(Stage::User))?;
        }
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        let (effective, of_group) = (rustix::process::geteuid(), rustix::process::getegid());
        let now = [uid.as_raw(), effective.as_raw(), gid.as_raw(), of_group.as_raw()];
        // The number -1 changes nothing, and is no error.
        if now != [user.uid, user.uid, user.gid, user.gid] {
            return Err((Stage::User, rustix::io::Errno::INVAL.into()));
        }
    }
    if let Some(confinement) = &program.confinement {
        let root = rustix::process::geteuid().is_root();
        let kept = if root { confinement.capabilities } else { confinement.ambient };
        keep_capabilities(kept, !root).map_err(|e| (Stage::Capabilities, e.into()))?;
    }
    // A change of credentials clears it.
    if program.user.is_some() || program.confinement.is_some() {
        tie_to(parent).map_err(at(Stage::Parent))?;
    }
    Ok(())
}

/// Has the kernel kill this process when the executor dies, also when it already has. `parent` is 0 in another pid
/// namespace.
///
/// # Errors
/// When the parent has died before, as `ESRCH`.
pub fn tie_to(parent: i32) -> io::Result<()> {
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
