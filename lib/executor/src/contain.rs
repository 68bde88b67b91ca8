//! The fate of a workload from its state directory, and the end of a killed executor's leftovers.
//!
//! The executor holds a lock on its directory for life, so "is it alive?" needs no pid. A free lock without a result
//! means that the executor was killed. The first process to notice takes the lock, ends the remaining processes by
//! cgroup, session and marker, and stores a result that says so. All others find that result.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::disk::{Durability, replace};
use crate::epoch::{self, Verdict};
use crate::process::{self, ProcessStat};
use cgroup::Paths;
use executor_proto::{MARKER_VARIABLE, ResultRecord, StateRecord, files};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};

use crate::error::Error;

/// How long processes may take to disappear after SIGKILL.
const DEATH: Duration = Duration::from_secs(5);

/// How long those may take that have not disappeared before.
const RESISTED: Duration = Duration::from_millis(100);

/// How long processes are waited for that may belong to the workload: while they execute a program, they cannot say.
const UNDECIDED: Duration = Duration::from_secs(1);

/// How many looks those get at least: a machine that stands still spends their time on none.
const LOOKS: u32 = 10;

/// The fate of a workload.
#[derive(Debug)]
pub enum Fate {
    /// An executor holds the lock.
    Alive,
    /// The workload and its tree have ended.
    Ended(ResultRecord),
}

/// Reads the fate of the workload in `state_dir`, and ends a dead executor's leftovers. `known` replaces an unreadable
/// record. Blocking: killing may take seconds.
///
/// # Errors
/// [`Error::Absent`] when nothing ever started there. [`Error::Damaged`] without a record that can be read or is
/// `known`. [`Error::Uncontained`] when processes resist SIGKILL; another call tries again.
pub fn fate(state_dir: &Path, known: Option<&StateRecord>) -> Result<Fate, Error> {
    if let Some(result) = read_result(state_dir)? {
        return Ok(Fate::Ended(result));
    }
    let Some(_lock) = try_lock(state_dir)? else {
        return Ok(Fate::Alive);
    };
    // It may have ended properly between the two looks.
    if let Some(result) = read_result(state_dir)? {
        return Ok(Fate::Ended(result));
    }
    let record = match (read_record(state_dir), known) {
        (Ok(Some(record)), _) => record,
        (_, Some(known)) => known.clone(),
        (Ok(None), None) => {
            return Err(Error::Absent { state_dir: state_dir.to_owned() });
        }
        (Err(e), None) => return Err(e),
    };
    let boot_id = process::boot_id().map_err(Error::io("read the boot id of the machine for", state_dir))?;
    let same_boot = boot_id == record.boot_id;
    if same_boot {
        kill_remains(state_dir, &record)?;
    }
    if record.launching {
        // Nothing of it has run, so there is no end to report and it may start.
        let _ = cgroup::remove(&Paths::of_record(&record));
        std::fs::remove_file(state_dir.join(files::STATE)).map_err(Error::io("remove the record in", state_dir))?;
        return Err(Error::Absent { state_dir: state_dir.to_owned() });
    }
    let why = if same_boot { "was killed" } else { "ended with a restart of the machine" };
    let reason = format!(
        "executor lost: process {} {why} before its workload ended, so the exit code is unknown; \
         what was left of the workload has been killed",
        record.executor_pid
    );
    let oom_killed = cgroup::oom_kills(&Paths::of_record(&record)) > 0;
    let result = ResultRecord { oom_killed, ..lost(record.started_at_ns, reason) };
    let _ = cgroup::remove(&Paths::of_record(&record));
    let _ = std::fs::remove_file(state_dir.join(files::SOCKET));
    store_result(state_dir, &result)?;
    Ok(Fate::Ended(result))
}

/// A result without an exit code.
fn lost(started_at_ns: u64, reason: String) -> ResultRecord {
    ResultRecord {
        exit_code: -1,
        started_at_ns,
        finished_at_ns: process::now_ns(),
        lost: true,
        reason,
        ..ResultRecord::default()
    }
}

/// Ends what was to be started in `state_dir` before the machine was restarted, with the boot `boot_id`: it may have
/// run, whatever the loss of power has left of its record. Does nothing where it has ended, or where it was started
/// since then.
///
/// # Errors
/// When a file cannot be read or written, or another process holds the directory for long. Nothing may be started
/// there then.
pub fn end_by_restart(state_dir: &Path, boot_id: &str) -> Result<(), Error> {
    let begun = Instant::now();
    loop {
        let held = try_lock(state_dir)?;
        if read_result(state_dir)?.is_some() {
            return Ok(());
        }
        let (record, damaged) = match read_record(state_dir) {
            Ok(record) => (record, false),
            Err(_) => (None, true),
        };
        if record.as_ref().is_some_and(|record| record.boot_id == boot_id) {
            return Ok(());
        }
        if held.is_some() {
            let reason =
                "executor lost: it ended with a restart of the machine, so the exit code is unknown".to_owned();
            let started_at_ns = record.map_or_else(process::now_ns, |record| record.started_at_ns);
            let _ = std::fs::remove_file(state_dir.join(files::SOCKET));
            if damaged {
                std::fs::remove_file(state_dir.join(files::STATE))
                    .map_err(Error::io("remove the damaged record in", state_dir))?;
            }
            return store_result(state_dir, &lost(started_at_ns, reason));
        }
        if begun.elapsed() > DEATH {
            return Err(Error::Unresponsive { state_dir: state_dir.to_owned(), seconds: DEATH.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The lock of a directory without an executor; `None` while another process holds it.
///
/// # Errors
/// [`Error::Absent`] without the directory; else when it cannot be opened or locked.
pub fn try_lock(state_dir: &Path) -> Result<Option<File>, Error> {
    let dir = match File::open(state_dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(Error::Absent { state_dir: state_dir.to_owned() });
        }
        other => other.map_err(Error::io("open the state directory", state_dir))?,
    };
    match flock(&dir, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(dir)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(Error::io("lock the state directory", state_dir)(e.into())),
    }
}

/// The result, if there is one.
///
/// # Errors
/// When the file cannot be read, or is damaged.
pub fn read_result(state_dir: &Path) -> Result<Option<ResultRecord>, Error> {
    read_json(&state_dir.join(files::RESULT))
}

/// Stores a result durably. The caller holds the lock.
///
/// # Errors
/// When the file cannot be written; the former one is unharmed.
pub fn store_result(state_dir: &Path, result: &ResultRecord) -> Result<(), Error> {
    replace(state_dir, files::RESULT, result.to_json().as_bytes(), Durability::Durable)
        .map_err(Error::io("store the result of the workload in", state_dir))
}

/// The executor's record, if there is one.
///
/// # Errors
/// When the file cannot be read, or is damaged.
pub fn read_record(state_dir: &Path) -> Result<Option<StateRecord>, Error> {
    read_json(&state_dir.join(files::STATE))
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<T>, Error> {
    match std::fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|e| Error::Damaged { path: path.to_owned(), why: e.to_string() }),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io("read", path)(e)),
    }
}

/// Bars any start in `state_dir`, where nothing has started so far: a later launch finds the workload ended. Returns
/// the result in the directory afterwards, or `None` when a workload runs.
///
/// # Errors
/// [`Error::StaleEpoch`] when a higher epoch was recorded; else when a file cannot be read or written. A start is not
/// barred then.
pub fn retire(state_dir: &Path, epoch: Option<u64>, reason: &str) -> Result<Option<ResultRecord>, Error> {
    let Some(_lock) = try_lock(state_dir)? else {
        return Ok(None);
    };
    if let Some(result) = read_result(state_dir)? {
        return Ok(Some(result));
    }
    if read_record(state_dir)?.is_some() {
        return Ok(None);
    }
    if let Some(given) = epoch {
        claim(state_dir, given)?;
    }
    let now = process::now_ns();
    let result = ResultRecord {
        exit_code: -1,
        started_at_ns: now,
        finished_at_ns: now,
        reason: reason.to_owned(),
        ..ResultRecord::default()
    };
    store_result(state_dir, &result)?;
    Ok(Some(result))
}

/// Records an epoch in a directory. The caller holds its lock.
///
/// # Errors
/// [`Error::StaleEpoch`] when a higher epoch was recorded; else when the file cannot be read or written.
pub fn claim(state_dir: &Path, given: u64) -> Result<(), Error> {
    match epoch::claim(state_dir, given).map_err(Error::io("record the epoch in", state_dir))? {
        Verdict::Stale(current) => Err(Error::StaleEpoch { state_dir: state_dir.to_owned(), given, current }),
        Verdict::Current | Verdict::Raise => Ok(()),
    }
}

/// Kills until no process of the workload lives.
fn kill_remains(state_dir: &Path, record: &StateRecord) -> Result<(), Error> {
    // One that nothing ends must not delay every look at all others.
    let patience = if resisting().contains(state_dir) { RESISTED } else { DEATH };
    let killed = kill_remains_within(state_dir, record, patience);
    match &killed {
        Err(Error::Uncontained { .. }) => drop(resisting().insert(state_dir.to_owned())),
        _ => drop(resisting().remove(state_dir)),
    }
    killed
}

/// Directories whose processes have outlived [`DEATH`].
fn resisting() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    static RESISTING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    RESISTING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill_remains_within(state_dir: &Path, record: &StateRecord, patience: Duration) -> Result<(), Error> {
    let paths = Paths::of_record(record);
    let (begun, deadline) = (Instant::now(), Instant::now() + patience);
    let (mut pause, mut looks) = (Duration::from_millis(1), 0);
    // A machine that stood still has seen nobody resist.
    let least = if patience < DEATH { 0 } else { LOOKS };
    let mut killed: Vec<ProcessStat> = Vec::new();
    loop {
        looks += 1;
        cgroup::kill(&paths);
        let all = process::all().map_err(Error::io("list processes to end the workload in", state_dir))?;
        let (mut remains, undecided) = remains(record, &paths, &all);
        remains.extend(still_exiting(&killed, &all));
        remains.sort_unstable();
        remains.dedup();
        killed = all.iter().filter(|p| remains.contains(&p.pid)).copied().collect();
        if remains.is_empty() && (!undecided || is_given_up(looks, begun.elapsed())) {
            return Ok(());
        }
        for pid in remains.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if looks > least && Instant::now() > deadline {
            return Err(Error::Uncontained { state_dir: state_dir.to_owned(), pids: remains });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Whether those that cannot say whether they belong to the workload have had their time.
fn is_given_up(looks: u32, elapsed: Duration) -> bool {
    looks > LOOKS && elapsed > UNDECIDED
}

/// Those of the processes that were killed that have not ended. While a process exits, the kernel takes its memory
/// first, and with it the environment by which it was found, then its files: it may hold a port for a moment longer.
fn still_exiting(killed: &[ProcessStat], all: &[ProcessStat]) -> impl Iterator<Item = i32> {
    let same = |a: &ProcessStat, b: &ProcessStat| (a.pid, a.start) == (b.pid, b.start);
    all.iter().filter(move |now| now.is_alive() && killed.iter().any(|then| same(then, now))).map(|now| now.pid)
}

/// Live processes of the workload, and whether there are some that may belong to it.
fn remains(record: &StateRecord, paths: &Paths, all: &[ProcessStat]) -> (Vec<i32>, bool) {
    let mut found: Vec<i32> = cgroup::members(paths);
    found.retain(|pid| all.iter().any(|p| p.pid == *pid && p.is_alive()));
    // The kernel does not reuse a session's number while the session has members. So a leader with another start time
    // means that our session is empty and its number was reused.
    let leader = all.iter().find(|p| p.pid == record.workload_pid);
    if record.workload_pid > 0 && leader.is_none_or(|l| l.start == record.workload_start) {
        found.extend(all.iter().filter(|p| p.session == record.workload_pid && p.is_alive()).map(|p| p.pid));
    }
    let mut undecided = false;
    if paths.is_empty() && !record.id.is_empty() {
        let marker = format!("{MARKER_VARIABLE}={}", record.id);
        let young: Vec<ProcessStat> = all.iter().filter(|p| p.start >= record.workload_start).copied().collect();
        let marked = process::with_environment(marker.as_bytes(), &young);
        found.extend(marked.0.iter().map(|p| p.pid));
        undecided = marked.1;
    }
    (found, undecided)
}

/// Sends a signal to the executor itself, if the recorded one still lives.
pub fn signal_executor(record: &StateRecord, signal: Signal) {
    let same = ProcessStat::of(record.executor_pid).is_some_and(|p| p.start == record.executor_start);
    let here = process::boot_id().is_ok_and(|boot| boot == record.boot_id);
    if let Some(pid) = Pid::from_raw(record.executor_pid).filter(|_| same && here) {
        let _ = kill_process(pid, signal);
    }
}

/// Asks the executor of `state_dir` to listen there.
pub fn ask_for_socket(state_dir: &Path) {
    match read_record(state_dir) {
        Ok(Some(record)) => signal_executor(&record, Signal::HUP),
        // It is just starting.
        Ok(None) => {}
        // The record is damaged, but the process's command line has the directory's name.
        Err(_) => {
            let of_dir = |pid: &i32| {
                let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let args: Vec<&[u8]> = command.split(|b| *b == 0).collect();
                matches!(args.as_slice(), [_, b"run" | b"collect", dir, ..] if *dir == state_dir.as_os_str().as_bytes())
            };
            let pids = process::all().unwrap_or_default().into_iter().map(|p| p.pid);
            for pid in pids.filter(of_dir).filter_map(Pid::from_raw) {
                let _ = kill_process(pid, Signal::HUP);
            }
        }
    }
}

/// Number of a signal by its name, with or without `SIG`, in either case.
pub fn signal_number(name: &str) -> Option<i32> {
    let upper = name.trim().to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let signal = match name {
        "HUP" => Signal::HUP,
        "INT" => Signal::INT,
        "QUIT" => Signal::QUIT,
        "ILL" => Signal::ILL,
        "TRAP" => Signal::TRAP,
        "ABRT" | "IOT" => Signal::ABORT,
        "BUS" => Signal::BUS,
        "FPE" => Signal::FPE,
        "KILL" => Signal::KILL,
        "USR1" => Signal::USR1,
        "SEGV" => Signal::SEGV,
        "USR2" => Signal::USR2,
        "PIPE" => Signal::PIPE,
        "ALRM" => Signal::ALARM,
        "TERM" => Signal::TERM,
        "STKFLT" => Signal::STKFLT,
        "CHLD" => Signal::CHILD,
        "CONT" => Signal::CONT,
        "STOP" => Signal::STOP,
        "TSTP" => Signal::TSTP,
        "TTIN" => Signal::TTIN,
        "TTOU" => Signal::TTOU,
        "URG" => Signal::URG,
        "XCPU" => Signal::XCPU,
        "XFSZ" => Signal::XFSZ,
        "VTALRM" => Signal::VTALARM,
        "PROF" => Signal::PROF,
        "WINCH" => Signal::WINCH,
        "IO" | "POLL" => Signal::IO,
        "PWR" => Signal::POWER,
        "SYS" => Signal::SYS,
        _ => return None,
    };
    Some(signal.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_was_killed_counts_until_it_has_ended() {
        let of = |pid, start, state| ProcessStat {
            pid,
            state,
            ppid: 1,
            session: pid,
            user_ticks: 0,
            system_ticks: 0,
            children_user_ticks: 0,
            children_system_ticks: 0,
            start,
            rss_pages: 0,
        };
        let killed = [of(7, 100, 'S'), of(8, 100, 'R'), of(9, 100, 'D')];
        // The second is a zombie, the number of the third is another's by now.
        let now = [of(7, 100, 'R'), of(8, 100, 'Z'), of(9, 300, 'S'), of(10, 100, 'S')];
        assert_eq!(still_exiting(&killed, &now).collect::<Vec<_>>(), [7]);
        assert_eq!(still_exiting(&[], &now).count(), 0, "nobody was found before");
    }

    #[test]
    fn who_cannot_say_gets_time_and_looks() {
        let (short, long) = (UNDECIDED / 2, UNDECIDED * 3);
        for (looks, elapsed, given_up) in [
            (1, short, false),
            (1, long, false),
            (LOOKS, long, false),
            (LOOKS + 1, short, false),
            (LOOKS + 1, long, true),
        ] {
            assert_eq!(is_given_up(looks, elapsed), given_up, "{looks} looks in {elapsed:?}");
        }
    }
}
