//! Instances as directories below `root`.
//!
//! Every step may be repeated and interrupted. A change of an instance holds its directory's lock. Each decision is one
//! atomic step: the intent by a hard link that fails if it exists, the start by the executor's lock, the end by its
//! result. An acknowledgement keeps the executor's directory with the result for a week: a late start of the same key
//! finds it and starts nothing. Sealing a key without an instance makes the same directory with a result of its own.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use executor_proto::host::{
    HostAcknowledge, HostAmount, HostEnsure, HostEnsured, HostFile, HostFind, HostInstance, HostList, HostListed,
    HostObservation, HostRefresh, HostSeal, HostSignal, HostState, HostStop,
};
use executor_proto::{Signal, StateRecord, Stats, StatsReply, files, reply, request};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::controller::{self, Found};
use super::files::{Staged, Upload};
use super::place::{Intent, Place, create_once, file_name, key_of, remove_tree, sync};
use super::refusal::{Answer, Refusal, unclear};
use crate::contain::{self, Fate};
use crate::disk::is_full;
use crate::error::Error;
use crate::{epoch, process};
use cgroup::CgroupHost;

/// The remains of an acknowledged instance or a seal must outlive the last call of a manager that lost its lease long
/// ago.
const RETIRED_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// Age at which partial uploads of cut channels are removed.
const UPLOAD_FOR: Duration = Duration::from_secs(24 * 3600);
/// How long a create waits while others count the host's room: that takes milliseconds.
const ROOM_WITHIN: Duration = Duration::from_secs(10);
/// How long a seal waits for a start by a manager of an older release without the lock.
const DECIDED_WITHIN: Duration = Duration::from_secs(20);

/// Makes a directory that only its owner reads, if it is not there.
fn make(dir: &Path) -> Answer<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(unclear("create", dir))
}

/// One runtime.
#[derive(Debug)]
pub(super) struct Runtime {
    pub(super) root: PathBuf,
    pub(super) id: String,
    /// The machine's boot; empty when it cannot be read.
    pub(super) boot: String,
    pub(super) binary: PathBuf,
    pub(super) cgroups: CgroupHost,
}

/// Receives the files of an instance, once they are needed.
pub(super) type Receive<'a> = dyn FnMut(&Runtime, &[HostFile], &str) -> Answer<Staged> + 'a;

impl Runtime {
    /// Opens the runtime; makes its identity on first use.
    pub(super) fn open(root: &Path) -> Answer<Runtime> {
        for dir in [root.to_owned(), root.join("instances"), root.join("uploads")] {
            make(&dir)?;
        }
        let root = &std::fs::canonicalize(root).map_err(unclear("find", root))?;
        let file = root.join("provider-id");
        let id = match read_id(root) {
            Ok(id) => id,
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let kernel = Path::new("/proc/sys/kernel/random/uuid");
                let fresh = std::fs::read_to_string(kernel).map_err(unclear("read", kernel))?;
                create_once(&file, fresh.trim().as_bytes()).map_err(unclear("create", &file))?;
                // The first one has decided.
                read_id(root).map_err(unclear("read", &file))?
            }
            Err(e) => return Err(unclear("read", &file)(e)),
        };
        let binary =
            std::env::current_exe().map_err(unclear("find the program behind", Path::new("/proc/self/exe")))?;
        let boot = process::boot_id().unwrap_or_default();
        let runtime = Runtime { root: root.to_owned(), id, boot, binary, cgroups: CgroupHost::detect() };
        runtime.tidy();
        Ok(runtime)
    }

    /// Checks the runtime's identity: an empty mount point would look like a runtime without instances. Only with the
    /// identity in place an absence means anything.
    pub(super) fn check(&self) -> Answer<()> {
        let file = self.root.join("provider-id");
        match read_id(&self.root) {
            Ok(id) if id == self.id => Ok(()),
            Ok(id) => Err(Refusal::CouldNotAsk(format!(
                "{} now belongs to the runtime {id}, it was {} when this channel was opened",
                self.root.display(),
                self.id
            ))),
            Err(e) => Err(unclear("read", &file)(e)),
        }
    }

    /// The directory of a key.
    fn place(&self, key: &str) -> Answer<Place> {
        Ok(Place { dir: self.root.join("instances").join(file_name(key)?) })
    }

    /// The instance of a key with its intent; `Gone` when the runtime is there and the instance is not.
    pub(super) fn find(&self, key: &str) -> Answer<(Place, Intent)> {
        let (place, intent) = self.entry(key)?;
        self.settle(&place, &intent)?;
        Ok((place, intent))
    }

    /// As [`Runtime::find`], without a look at whether the machine was restarted: one instance that cannot be settled
    /// hides no other.
    fn entry(&self, key: &str) -> Answer<(Place, Intent)> {
        let place = self.place(key)?;
        let retired = place.retired();
        // An intent beside the mark comes from a late call or an interrupted retirement.
        let intent = match retired.try_exists().map_err(unclear("look at", &retired))? {
            true => None,
            false => place.read_intent()?,
        };
        match intent {
            Some(intent) => Ok((place, intent)),
            None => {
                self.check()?;
                Err(Refusal::Gone(format!("{} has no instance {key}", self.root.display())))
            }
        }
    }

    /// After a restart of the machine: whatever was to be started before it has ended. What a loss of power leaves of
    /// the executor's record does not say whether it has run.
    fn settle(&self, place: &Place, intent: &Intent) -> Answer<()> {
        if intent.boot.is_empty() || self.boot.is_empty() || intent.boot == self.boot {
            return Ok(());
        }
        let state_dir = place.state_dir();
        make(&state_dir)?;
        Ok(contain::end_by_restart(&state_dir, &self.boot)?)
    }

    /// One look at an instance. Ends a killed executor's leftovers, which may take seconds.
    pub(super) fn look(&self, key: &str) -> Answer<HostObservation> {
        match self.find(key) {
            Ok((place, _)) => observe(key, &place),
            Err(Refusal::Gone(_)) => {
                Ok(HostObservation { key: key.to_owned(), state: HostState::Gone.into(), ..HostObservation::default() })
            }
            Err(e) => Err(e),
        }
    }

    /// As [`Runtime::look`]; a failure becomes an observation, too.
    pub(super) fn look_or_unknown(&self, key: &str) -> HostObservation {
        self.look(key).unwrap_or_else(|e| HostObservation {
            key: key.to_owned(),
            reason: e.into_wire().message,
            ..HostObservation::default()
        })
    }

    /// Finds an instance of `owner` by its key. `Sealed` where there is none and never will be.
    pub(super) fn found(&self, request: &HostFind) -> Answer<HostObservation> {
        let intent = match self.find(&request.key) {
            Ok((_, intent)) => intent,
            Err(Refusal::Gone(_)) if self.place(&request.key)?.retired().exists() => return Err(Refusal::Sealed),
            Err(e) => return Err(e),
        };
        intent.owned_by(&request.owner)?;
        let seen = self.look(&request.key)?;
        match seen.state() {
            HostState::Gone => Err(Refusal::Gone(format!("instance {} has just been acknowledged", request.key))),
            _ => Ok(seen),
        }
    }

    /// Instances of one owner, or of all, in the order of their keys.
    pub(super) fn list(&self, request: &HostList) -> Answer<HostListed> {
        let mut listed = HostListed::default();
        for key in self.keys()?.into_iter().filter(|key| *key > request.after) {
            let intent = match self.entry(&key) {
                Ok((_, intent)) => intent,
                // Just being made, or acknowledged.
                Err(Refusal::Gone(_)) => {
                    self.finish_retirement(&self.place(&key)?);
                    continue;
                }
                Err(e) => return Err(e),
            };
            if !request.owner.is_empty() && intent.owner != request.owner {
                continue;
            }
            if listed.instances.len() >= request.limit.max(1) as usize {
                listed.more = true;
                break;
            }
            listed.instances.push(HostInstance {
                slot: intent.slot,
                owner: intent.owner,
                observed: Some(self.look_or_unknown(&key)),
            });
        }
        Ok(listed)
    }

    /// Capacity in use by instances that have not ended, except the one with key `except`.
    pub(super) fn used(&self, except: &str) -> Answer<HostAmount> {
        let mut used = HostAmount::default();
        for key in self.keys()?.into_iter().filter(|key| key != except) {
            let (place, intent) = match self.entry(&key) {
                Ok(found) => found,
                Err(Refusal::Gone(_)) => continue,
                Err(e) => return Err(e),
            };
            if contain::read_result(&place.state_dir())?.is_none() {
                let takes = intent.takes();
                used.cpu_mhz += takes.cpu_mhz;
                used.memory_mib += takes.memory_mib;
                used.sessions += takes.sessions;
            }
        }
        Ok(used)
    }

    /// Creates the instance or gets the existing one. Also completes a half-made one after a crash.
    pub(super) fn ensure(&self, request: &HostEnsure, receive: &mut Receive<'_>) -> Answer<HostEnsured> {
        self.check()?;
        let place = self.place(&request.key)?;
        let mut staged = None;
        loop {
            let _held = place.hold()?;
            self.refuse_sealed(&place, request.epoch)?;
            if self.standing(&place, request)? {
                // A running or ended instance is not prepared again; it only learns the epoch.
                controller::claim(&place.state_dir(), request.epoch)?;
                return Ok(HostEnsured { observed: Some(self.look(&request.key)?), created: false });
            }
            let files = match staged.take() {
                Some(files) => files,
                None if request.files.is_empty() => Staged::none(),
                None => {
                    // Without the lock: the channel may be slow or cut.
                    drop(_held);
                    staged = Some(receive(self, &request.files, &request.digest)?);
                    continue;
                }
            };
            return self.create(&place, request, files);
        }
    }

    /// Whether an instance has started with the key; refuses another cluster's.
    fn standing(&self, place: &Place, request: &HostEnsure) -> Answer<bool> {
        let Some(intent) = place.read_intent()? else {
            return Ok(false);
        };
        intent.owned_by(&request.owner)?;
        self.settle(place, &intent)?;
        match contain::fate(&place.state_dir(), None) {
            Ok(_) => Ok(true),
            Err(Error::Absent { .. }) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Creates the instance. The caller holds it.
    fn create(&self, place: &Place, request: &HostEnsure, files: Staged) -> Answer<HostEnsured> {
        // Refuses a stale manager before it makes anything; a newer manager's half-made instance stays intact.
        let state_dir = place.state_dir();
        make(&state_dir)?;
        if let Some(_lock) = contain::try_lock(&state_dir)? {
            contain::claim(&state_dir, request.epoch)?;
        }
        let made = self.intend(place, request).and_then(|()| {
            let spec = self.prepare(place, request, files)?;
            Ok(controller::launch(&self.binary, &state_dir, &spec)?)
        });
        match made {
            Ok(created) => {
                if !created {
                    controller::claim(&state_dir, request.epoch)?;
                }
                Ok(HostEnsured { observed: Some(self.look(&request.key)?), created })
            }
            Err(refusal) => {
                self.undo(place)?;
                Err(refusal)
            }
        }
    }

    /// Writes the intent, if the host has room.
    fn intend(&self, place: &Place, request: &HostEnsure) -> Answer<()> {
        let takes = request.takes.unwrap_or_default();
        let intent = Intent {
            key: request.key.clone(),
            owner: request.owner.clone(),
            slot: request.slot.clone(),
            task_name: request.task_name.clone(),
            cpu_mhz: takes.cpu_mhz,
            memory_mib: takes.memory_mib,
            boot: self.boot.clone(),
        };
        // Two concurrent creates must not both take the last room.
        let _room = match request.capacity.filter(|c| *c != HostAmount::default()) {
            Some(capacity) => {
                let lock = self.lock_room()?;
                fits(&capacity, &self.used(&request.key)?, &intent.takes()).map_err(Refusal::NoRoom)?;
                Some(lock)
            }
            None => None,
        };
        let file = place.intent();
        let bytes = serde_json::to_vec(&intent).map_err(|e| Refusal::WrongRequest(e.to_string()))?;
        create_once(&file, &bytes).map_err(unclear("create", &file))?;
        // The names on the way to it, too: this file alone says after a loss of power that it may have run.
        let instances = self.root.join("instances");
        sync(&instances).map_err(unclear("store", &instances))
    }

    fn lock_room(&self) -> Answer<File> {
        let dir = self.root.join("instances");
        let file = File::open(&dir).map_err(unclear("open", &dir))?;
        let begun = std::time::Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) if begun.elapsed() < ROOM_WITHIN => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(Refusal::CouldNotAsk(format!(
                        "another create has been counting the host's room for {} s; its disk may hang",
                        ROOM_WITHIN.as_secs()
                    )));
                }
                Err(e) => return Err(unclear("lock", &dir)(e.into())),
            }
        }
    }

    /// Removes an instance that did not start: otherwise it would be listed as *being created* for ever. Keeps the
    /// highest epoch, and an instance that has started or ended after all.
    fn undo(&self, place: &Place) -> Answer<()> {
        let state_dir = place.state_dir();
        let Some(_lock) = contain::try_lock(&state_dir)? else {
            return Ok(());
        };
        if contain::read_result(&state_dir)?.is_some() || contain::read_record(&state_dir)?.is_some() {
            return Ok(());
        }
        self.clear(place)
    }

    /// Refuses a sealed key, and removes the partial layout of a late call.
    fn refuse_sealed(&self, place: &Place, epoch: u64) -> Answer<()> {
        let retired = place.retired();
        let accepted: u64 = match std::fs::read_to_string(&retired) {
            Ok(epoch) => epoch.trim().parse().unwrap_or(0),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(unclear("read", &retired)(e)),
        };
        self.clear(place)?;
        Err(if epoch < accepted { Refusal::StaleEpoch { given: epoch, accepted } } else { Refusal::Sealed })
    }

    /// Ends an instance; returns when its whole tree has ended.
    pub(super) fn stop(&self, request: &HostStop) -> Answer<HostObservation> {
        let (place, _) = match self.find(&request.key) {
            Err(Refusal::Gone(_)) => return self.look(&request.key),
            other => other?,
        };
        let state_dir = place.state_dir();
        let begun = std::time::Instant::now();
        while controller::stop(&state_dir, request.epoch, request.signal, Duration::from_millis(request.grace_ms))?
            .is_none()
        {
            // An intent without a start: from now on it cannot start.
            make(&state_dir)?;
            contain::retire(&state_dir, Some(request.epoch), "stopped before it was started")?;
            if begun.elapsed() > DECIDED_WITHIN {
                return Err(Refusal::CouldNotAsk(format!(
                    "instance {} is being started for {DECIDED_WITHIN:?}; stop it again",
                    request.key
                )));
            }
        }
        self.look(&request.key)
    }

    /// Seals a key: after the answer nothing starts with it. Returns an existing instance without stopping it.
    pub(super) fn seal(&self, request: &HostSeal) -> Answer<Option<HostObservation>> {
        self.check()?;
        let place = self.place(&request.key)?;
        let _held = place.hold()?;
        let intent = match self.find(&request.key) {
            Ok((_, intent)) => Some(intent),
            Err(Refusal::Gone(_)) => None,
            Err(e) => return Err(e),
        };
        intent.as_ref().map(|intent| intent.owned_by(&request.owner)).transpose()?;
        let state_dir = place.state_dir();
        make(&state_dir)?;
        let begun = std::time::Instant::now();
        // From here on either an instance has started or none can.
        while controller::attach(&state_dir)?.is_none() {
            let decided = contain::retire(&state_dir, Some(request.epoch), "sealed before it was started")?;
            if decided.is_none() && begun.elapsed() > DECIDED_WITHIN {
                return Err(Refusal::CouldNotAsk(format!(
                    "instance {} is being started for {DECIDED_WITHIN:?}; seal it again",
                    request.key
                )));
            }
        }
        controller::claim(&state_dir, request.epoch)?;
        if intent.is_none() {
            return self.retire(&place, request.epoch).map(|()| None);
        }
        let seen = self.look(&request.key)?;
        Ok(Some(seen).filter(|seen| seen.state() != HostState::Gone))
    }

    /// The result is stored elsewhere: forgets the instance.
    pub(super) fn acknowledge(&self, request: &HostAcknowledge) -> Answer<()> {
        self.check()?;
        let place = self.place(&request.key)?;
        let _held = place.hold()?;
        match self.find(&request.key) {
            // Finishes a retirement that a crash has interrupted.
            Err(Refusal::Gone(_)) => return if place.retired().exists() { self.clear(&place) } else { Ok(()) },
            other => other?,
        };
        match contain::fate(&place.state_dir(), None) {
            Ok(Fate::Ended(_)) => {}
            Ok(Fate::Alive) | Err(Error::Absent { .. }) => {
                return Err(Refusal::WrongRequest(format!(
                    "instance {} has not ended; stop it before its result is acknowledged",
                    request.key
                )));
            }
            Err(e) => return Err(e.into()),
        }
        controller::claim(&place.state_dir(), request.epoch)?;
        self.retire(&place, request.epoch)
    }

    /// Sends a signal.
    pub(super) fn signal(&self, request: &HostSignal) -> Answer<()> {
        let (place, _) = self.find(&request.key)?;
        let state_dir = place.state_dir();
        let not_running = |what: &str| Refusal::WrongRequest(format!("instance {} {what}", request.key));
        match controller::attach(&state_dir)? {
            None => Err(not_running("has not been started yet")),
            Some(Found::Ended(_)) => Err(not_running("has ended")),
            Some(Found::Running(mut executor)) => {
                match executor.ask_now(
                    &state_dir,
                    Some(request.epoch),
                    request::Op::Signal(Signal { signal: request.signal }),
                ) {
                    Err(Error::NotRunning { .. }) => Err(not_running("has ended")),
                    other => Ok(other.map(drop)?),
                }
            }
        }
    }

    /// Renews files of a running instance.
    pub(super) fn refresh(&self, request: &HostRefresh, receive: &mut Receive<'_>) -> Answer<()> {
        let runs = || {
            let (place, _) = self.find(&request.key)?;
            let not_running = |what: &str| Err(Refusal::WrongRequest(format!("instance {} {what}", request.key)));
            match contain::fate(&place.state_dir(), None) {
                Ok(Fate::Alive) => Ok(place),
                Ok(Fate::Ended(_)) => not_running("has ended"),
                Err(Error::Absent { .. }) => not_running("has not been started yet"),
                Err(e) => Err(e.into()),
            }
        };
        runs()?;
        // Without the lock: the channel may be slow or cut.
        let files = receive(self, &request.files, &request.digest)?;
        let place = self.place(&request.key)?;
        // Under the lock, no newer manager comes between the check of the epoch and the files.
        let _held = place.hold()?;
        runs()?;
        controller::claim(&place.state_dir(), request.epoch)?;
        files.renew(&place.task_dir(), &request.files)
    }

    /// Resource use; `None` unless it runs.
    pub(super) fn stats(&self, key: &str) -> Answer<Option<StatsReply>> {
        let (place, _) = self.find(key)?;
        let state_dir = place.state_dir();
        let Some(Found::Running(mut executor)) = controller::attach(&state_dir)? else {
            return Ok(None);
        };
        match executor.ask_now(&state_dir, None, request::Op::Stats(Stats {})) {
            Ok(reply::Body::Stats(stats)) => Ok(Some(stats)),
            Ok(_) => Err(Refusal::CouldNotAsk("the executor answered another question than the one asked".into())),
            Err(Error::NotRunning { .. }) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }

    /// Keys of all instances, sorted.
    fn keys(&self) -> Answer<Vec<String>> {
        self.check()?;
        let dir = self.root.join("instances");
        let mut keys = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(unclear("list", &dir))? {
            let name = entry.map_err(unclear("list", &dir))?.file_name();
            keys.extend(name.to_str().and_then(key_of));
        }
        keys.sort_unstable();
        Ok(keys)
    }

    /// Forgets an ended instance. Keeps the part that bars a restart of its key for another week.
    fn retire(&self, place: &Place, epoch: u64) -> Answer<()> {
        let retired = place.retired();
        let marked = match create_once(&retired, epoch.to_string().as_bytes()) {
            // A disk that the instance has filled must not keep it from being forgotten. The epoch that was just
            // accepted is the same number, and another name for it takes no space.
            Err(e) if is_full(&e) => std::fs::hard_link(place.state_dir().join(files::EPOCH), &retired)
                .and_then(|()| sync(&place.dir))
                .map_err(|_| e),
            other => other,
        };
        marked.map_err(unclear("create", &retired))?;
        let again = std::fs::OpenOptions::new()
            .write(true)
            .open(&retired)
            .and_then(|file| file.set_modified(SystemTime::now()));
        again.map_err(unclear("date", &retired))?;
        let instances = self.root.join("instances");
        sync(&instances).map_err(unclear("store", &instances))?;
        self.clear(place)
    }

    /// Completes a retirement that a crash has interrupted. Nobody asks for the key again: its manager has heard that
    /// the instance is gone, and the task's files, secrets among them, would lie there until the mark is old.
    fn finish_retirement(&self, place: &Place) {
        let interrupted = || place.retired().exists() && place.intent().exists();
        // Another change of the instance finishes it as well. A failure is tried again at the next look.
        if interrupted()
            && let Ok(Some(_held)) = place.try_hold()
            && interrupted()
        {
            let _ = self.clear(place);
        }
    }

    /// Removes everything except the executor's directory and the retirement mark. The intent comes last: while it is
    /// there, something may be left.
    fn clear(&self, place: &Place) -> Answer<()> {
        for dir in [place.task_dir(), place.alloc_dir(), place.logs_dir()] {
            remove_tree(&dir)?;
        }
        let intent = place.intent();
        match std::fs::remove_file(&intent) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(unclear("remove", &intent)(e)),
            _ => Ok(()),
        }
    }

    /// Removes old retirements, refused creates, and cut uploads; completes retirements.
    fn tidy(&self) {
        let now = SystemTime::now();
        let older = |path: &Path, age: Duration| {
            let modified = std::fs::metadata(path).and_then(|m| m.modified()).ok();
            modified.and_then(|at| now.duration_since(at).ok()).is_some_and(|is| is > age)
        };
        for entry in std::fs::read_dir(self.root.join("instances")).into_iter().flatten().flatten() {
            let place = Place { dir: entry.path() };
            let refused = || {
                let nothing_ran = !place.state_dir().join(files::STATE).exists();
                nothing_ran && !place.retired().exists() && !place.intent().exists() && older(&place.dir, RETIRED_FOR)
            };
            let over = || older(&place.retired(), RETIRED_FOR) || refused();
            if !over() {
                self.finish_retirement(&place);
            } else if let Ok(Some(_held)) = place.try_hold()
                // A call may have come first.
                && over()
            {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        Upload::tidy(&self.root);
        for entry in std::fs::read_dir(self.root.join("uploads")).into_iter().flatten().flatten() {
            // Of releases whose uploads have no lock.
            if !Upload::is_one(&entry) && older(&entry.path(), UPLOAD_FOR) {
                let _ = std::fs::remove_dir_all(entry.path());
            }
        }
        for entry in std::fs::read_dir(self.root.join("executors")).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with('.') && older(&entry.path(), UPLOAD_FOR) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Whether the amount still fits; the error names the exhausted part.
pub(super) fn fits(capacity: &HostAmount, used: &HostAmount, takes: &HostAmount) -> Result<(), String> {
    let kinds = [
        ("MHz of processor", capacity.cpu_mhz, used.cpu_mhz, takes.cpu_mhz),
        ("MiB of memory", capacity.memory_mib, used.memory_mib, takes.memory_mib),
        ("instances", capacity.sessions, used.sessions, takes.sessions),
    ];
    match kinds.into_iter().find(|(_, capacity, used, takes)| *capacity > 0 && used.saturating_add(*takes) > *capacity)
    {
        None => Ok(()),
        Some((what, capacity, used, takes)) => {
            Err(format!("{used} of its {capacity} {what} are taken and {takes} more are needed"))
        }
    }
}

/// Observes an instance with an intent by its files.
fn observe(key: &str, place: &Place) -> Answer<HostObservation> {
    let state_dir = place.state_dir();
    let mut seen =
        HostObservation { key: key.to_owned(), state: HostState::Creating.into(), ..HostObservation::default() };
    let ended = match contain::read_result(&state_dir)? {
        Some(result) => Some(result),
        None if contain::read_record(&state_dir)?.is_some_and(|record| is_here(&record)) => None,
        // The lock comes last: a starting executor must not find it taken by a mere observer.
        None => match contain::fate(&state_dir, None) {
            Ok(Fate::Ended(result)) => Some(result),
            Ok(Fate::Alive) => None,
            Err(Error::Absent { .. }) => return Ok(seen),
            Err(e) => return Err(e.into()),
        },
    };
    seen.epoch = epoch::load(&state_dir).map_err(unclear("read the epoch in", &state_dir))?;
    // A record of a launch is not one of a start: nothing has run, and if the executor dies nothing will have.
    let record = contain::read_record(&state_dir)?.filter(|record| !record.launching);
    if let Some(record) = &record {
        seen.pid = record.workload_pid;
        seen.executor_pid = record.executor_pid;
        seen.started_at_ns = record.started_at_ns;
    }
    match ended {
        Some(result) => {
            seen.state = HostState::Exited.into();
            seen.started_at_ns = result.started_at_ns;
            seen.result = Some(result);
        }
        None if record.is_some() => seen.state = HostState::Running.into(),
        // It holds its directory but has not started its workload yet.
        None => {}
    }
    Ok(seen)
}

/// Whether a record's executor is a live process of this machine.
fn is_here(record: &StateRecord) -> bool {
    let alive =
        process::ProcessStat::of(record.executor_pid).is_some_and(|p| p.start == record.executor_start && p.is_alive());
    alive && process::boot_id().is_ok_and(|boot| boot == record.boot_id)
}

fn read_id(root: &Path) -> io::Result<String> {
    let text = std::fs::read_to_string(root.join("provider-id"))?;
    let id = text.trim();
    if id.is_empty() { Err(io::Error::new(io::ErrorKind::InvalidData, "it is empty")) } else { Ok(id.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_being_changed_is_not_tidied_away() {
        let root = tempfile::tempdir().unwrap();
        let runtime = Runtime::open(root.path()).unwrap();
        let place = runtime.place("old").unwrap();
        let held = place.hold().unwrap();
        std::fs::write(place.retired(), "1").unwrap();
        let old = SystemTime::now() - RETIRED_FOR - Duration::from_secs(60);
        File::options().write(true).open(place.retired()).unwrap().set_modified(old).unwrap();
        runtime.tidy();
        assert!(place.retired().exists(), "it is held");
        drop(held);
        // A process that another test starts may have the lock until it executes its program.
        let begun = std::time::Instant::now();
        while place.dir.exists() && begun.elapsed() < Duration::from_secs(60) {
            runtime.tidy();
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!place.dir.exists());
    }

    #[test]
    fn an_instance_that_cannot_be_settled_after_a_restart_hides_no_other() {
        let root = tempfile::tempdir().unwrap();
        let runtime = Runtime::open(root.path()).unwrap();
        for key in ["a", "b"] {
            let place = runtime.place(key).unwrap();
            std::fs::create_dir_all(&place.dir).unwrap();
            let intent = Intent {
                key: key.into(),
                owner: "o".into(),
                slot: key.into(),
                task_name: "t".into(),
                cpu_mhz: 0,
                memory_mib: 0,
                boot: "of another boot".into(),
            };
            std::fs::write(place.intent(), serde_json::to_vec(&intent).unwrap()).unwrap();
        }
        // Nothing can be written where its state is.
        std::fs::write(runtime.place("a").unwrap().state_dir(), "").unwrap();
        let listed = runtime.list(&HostList { limit: 10, ..HostList::default() }).unwrap();
        let seen: Vec<_> = listed.instances.iter().filter_map(|one| one.observed.as_ref()).collect();
        let states: Vec<_> = seen.iter().map(|seen| (seen.key.as_str(), seen.state())).collect();
        assert_eq!(states, [("a", HostState::Unknown), ("b", HostState::Exited)], "{seen:?}");
        assert!(!seen[0].reason.is_empty());
    }

    #[test]
    fn an_instance_runs_once_it_is_launched() {
        let root = tempfile::tempdir().unwrap();
        let runtime = Runtime::open(root.path()).unwrap();
        let place = runtime.place("a").unwrap();
        std::fs::create_dir_all(place.state_dir()).unwrap();
        let intent = Intent { key: "a".into(), boot: runtime.boot.clone(), ..Intent::default() };
        std::fs::write(place.intent(), serde_json::to_vec(&intent).unwrap()).unwrap();
        // Its executor lives: this process stands for it.
        let own = std::process::id() as i32;
        let mut record = StateRecord {
            boot_id: process::boot_id().unwrap(),
            executor_pid: own,
            executor_start: process::ProcessStat::of(own).unwrap().start,
            launching: true,
            started_at_ns: 7,
            ..StateRecord::default()
        };
        let seen = |record: &StateRecord| {
            std::fs::write(place.state_dir().join(files::STATE), record.to_json()).unwrap();
            let seen = runtime.look("a").unwrap();
            (seen.state(), seen.pid, seen.started_at_ns)
        };
        assert_eq!(seen(&record), (HostState::Creating, 0, 0));
        (record.launching, record.workload_pid) = (false, own);
        assert_eq!(seen(&record), (HostState::Running, own, 7));
    }

    #[test]
    fn room_is_counted_in_every_dimension() {
        let amount = |cpu_mhz, memory_mib, sessions| HostAmount { cpu_mhz, memory_mib, sessions };
        let fits = |c, u, t| fits(&c, &u, &t);
        assert_eq!(fits(amount(100, 100, 2), amount(50, 50, 1), amount(50, 50, 1)), Ok(()));
        assert_eq!(fits(amount(0, 0, 0), amount(5000, 5000, 50), amount(50, 50, 1)), Ok(()));
        for (capacity, named) in [(amount(99, 0, 0), "MHz"), (amount(0, 99, 0), "MiB"), (amount(0, 0, 1), "instances")]
        {
            assert!(fits(capacity, amount(50, 50, 1), amount(50, 50, 1)).unwrap_err().contains(named));
        }
        assert!(fits(amount(100, 0, 0), amount(1, 0, 0), amount(u64::MAX, 0, 0)).is_err());
    }
}
