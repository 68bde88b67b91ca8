//! What really runs, read from where it runs and never from Drover.
//!
//! Three witnesses. Each instance takes a lock that belongs to its slot when it begins, and tells when it did not get
//! it: two that live at once are seen however short that is. It writes down that it began, so runs of a batch are
//! counted. And a thread looks at the processes of the hosts all the time: one that has ended must have had a cause.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{
    super::world::Process,
    net::{HOSTS, Net},
};
use crate::{packages, process::Run};

/// How long an instance sleeps; nothing else on the machine sleeps that long.
const SLEEP: &str = "98711";
/// So long before its file was written Slurm's controller may have read what it saves.
const SAVING: Duration = Duration::from_secs(2);
/// So long after the controller is back may begin what the former one has ordered: slurmd loads the login environment
/// of a job before, and that takes seconds on a busy machine.
const LATE: Duration = Duration::from_secs(10);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(25);

/// How an instance ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ends {
    /// When it is stopped.
    Never,
    /// With code 3 after some seconds, again and again.
    Badly,
    /// With code 0 after some seconds.
    Well,
}

/// Configuration of a task whose instances bear witness in `dir`, as they see it.
pub(super) fn script(dir: &str, ends: Ends) -> Value {
    let end = match ends {
        Ends::Never => format!("exec sleep {SLEEP}"),
        Ends::Badly => "sleep 5 8>&-; exit 3".to_owned(),
        Ends::Well => format!("sleep 3 8>&-; echo $slot >>{dir}/ended; exit 0"),
    };
    // Descriptor 9 is where Slurm's driver has a lock of its own.
    // Only of what Slurm runs the time matters, and not every image has `date`.
    let begin = format!(
        "slot=$NOMAD_JOB_ID.$NOMAD_ALLOC_INDEX; exec 8>>{dir}/lock-$slot; {dir}/tools/loader --library-path \
            {dir}/tools {dir}/tools/flock -n 8 || echo \"$slot version $CHAOS_VERSION\" >>{dir}/overlaps; \
         [ -z \"$SLURM_JOB_ID\" ] || at=$(date +%s); echo \"$slot $CHAOS_VERSION $at\" >>{dir}/begun"
    );
    json!({"command": "/bin/sh", "args": ["-c", format!("{begin}; {end}")]})
}

/// `flock` with the libraries that it needs: images have no such program, and see this directory.
fn take_tools(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let flock = packages::find("flock").context("there is no flock")?;
    fs::copy(&flock, dir.join("flock"))?;
    let libraries = Run::new("ldd", [flock.as_os_str()]).output()?;
    // Each line has one absolute path; the loader is the one that is named by nothing else.
    for (line, path) in
        libraries.lines().filter_map(|line| Some((line, line.split_whitespace().find(|word| word.starts_with('/'))?)))
    {
        let name = if line.contains("=>") {
            Path::new(path).file_name().context("a library without a name")?
        } else {
            "loader".as_ref()
        };
        fs::copy(path, dir.join(name))?;
    }
    ensure!(dir.join("loader").exists(), "flock's loader is not told by ldd: {libraries}");
    Ok(())
}

/// (job, index).
pub(super) type Slot = (String, u32);

/// An instance that is seen as a process.
#[derive(Clone)]
pub(super) struct Seen {
    pub(super) slot: Slot,
    pub(super) version: u32,
    /// A host, or `engine`, which is also where clusters run.
    pub(super) host: &'static str,
    /// The allocation that it was created for.
    alloc: String,
    /// Slurm runs it.
    queued: bool,
    pub(super) process: Process,
}

/// What was asked for, from when: version and count, or nothing.
type Wanted = Vec<(Instant, Option<(u32, u32)>)>;

#[derive(Default)]
struct Ledger {
    wanted: BTreeMap<String, Wanted>,
    /// Processes that were ended by the run itself.
    excused: BTreeSet<u32>,
    /// When Slurm's controller has begun jobs that it did not save.
    unsaved: Vec<Unsaved>,
    live: BTreeMap<u32, (Seen, Instant)>,
    /// Judged already: a look that began before an end may still name it.
    ended: Vec<Process>,
    /// Ended without a cause since they were seen first.
    doubtful: Vec<Doubt>,
    violations: Vec<String>,
}

/// A time in which jobs of Slurm have begun that its saved state does not have, or has as waiting. The controller that
/// comes back with that state ends those that run.
struct Unsaved {
    from: SystemTime,
    /// None while no controller is back.
    to: Option<SystemTime>,
}

impl Unsaved {
    /// Of a controller that has died with a state of this time, or without one.
    fn since(saved: Option<SystemTime>) -> Self {
        let from = saved.and_then(|saved| saved.checked_sub(SAVING)).unwrap_or(UNIX_EPOCH);
        Self { from, to: None }
    }

    /// Whether a job whose task began then may be one of them.
    fn has(&self, begun: SystemTime) -> bool {
        self.from <= begun && self.to.is_none_or(|to| begun <= to)
    }
}

/// An end without a cause, unless its instance had been asked for before it was seen: what is no longer wanted may
/// begin all the same, when its creation is on the way, and end while its slot is wanted again, for a successor.
struct Doubt {
    seen: Seen,
    since: Instant,
    ended: Instant,
    what: String,
}

/// Looks at the hosts until it is told to stop.
pub(super) struct Watch {
    dir: PathBuf,
    ledger: Arc<Mutex<Ledger>>,
    looks: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// `world` is what instances of this run have in their environment; `dir` is where they write.
    pub(super) fn begin(world: &str, dir: &Path, net: &Net) -> Result<Self> {
        take_tools(&dir.join("tools"))?;
        let mut hosts = BTreeMap::new();
        for host in HOSTS {
            hosts.insert(fs::metadata(net.namespace_file(host))?.ino(), host);
        }
        let (ledger, looks, stop): (Arc<Mutex<Ledger>>, Arc<AtomicUsize>, Arc<AtomicBool>) = Default::default();
        let (mine, counted, ended, world) = (ledger.clone(), looks.clone(), stop.clone(), world.to_owned());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                let found = look(&world, &hosts);
                judge(&mut lock(&mine), found);
                counted.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(PAUSE);
            }
        });
        Ok(Self { dir: dir.to_owned(), ledger, looks, stop, thread: Some(thread) })
    }

    /// Says that from now on this is wanted of a job. Called before anybody is asked for it.
    pub(super) fn want(&self, job: &str, wanted: Option<(u32, u32)>) {
        lock(&self.ledger).wanted.entry(job.to_owned()).or_default().push((Instant::now(), wanted));
    }

    /// Says that the run itself is about to end this instance. Returns whether nothing had said so before.
    pub(super) fn excuse(&self, pid: u32) -> bool {
        lock(&self.ledger).excused.insert(pid)
    }

    /// Takes that back.
    pub(super) fn blame(&self, pid: u32) {
        lock(&self.ledger).excused.remove(&pid);
    }

    /// Says that Slurm's controller was killed, and when it last saved its state. It saves what has changed every few
    /// seconds, on a busy machine less often.
    pub(super) fn controller_died(&self, saved: Option<SystemTime>) {
        lock(&self.ledger).unsaved.push(Unsaved::since(saved));
    }

    /// Says that another controller has been started.
    pub(super) fn controller_is_back(&self) {
        for unsaved in lock(&self.ledger).unsaved.iter_mut().filter(|unsaved| unsaved.to.is_none()) {
            unsaved.to = Some(SystemTime::now() + LATE);
        }
    }

    /// How many instances Slurm may have ended because its controller had forgotten their jobs, by slot.
    pub(super) fn forgotten(&self) -> BTreeMap<String, usize> {
        forgotten(&self.read("begun"), &lock(&self.ledger).unsaved)
    }

    /// What lives now, as far as it shows as a process.
    pub(super) fn live(&self) -> Vec<Seen> {
        lock(&self.ledger).live.values().map(|(seen, _)| seen.clone()).collect()
    }

    /// Slots and versions that should live and show as processes.
    pub(super) fn wanted(&self) -> BTreeSet<(Slot, u32)> {
        let ledger = lock(&self.ledger);
        let last = ledger.wanted.iter().filter_map(|(job, wanted)| Some((job, wanted.last()?.1?)));
        last.flat_map(|(job, (version, count))| (0..count).map(move |index| ((job.clone(), index), version))).collect()
    }

    /// How often it has looked.
    pub(super) fn looks(&self) -> usize {
        self.looks.load(Ordering::Relaxed)
    }

    /// How many instances have begun, by slot.
    pub(super) fn begun(&self) -> BTreeMap<String, usize> {
        self.counted("begun")
    }

    /// How many instances have come to their own good end, by slot.
    pub(super) fn ended(&self) -> BTreeMap<String, usize> {
        self.counted("ended")
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.dir.join(file)).unwrap_or_default()
    }

    fn counted(&self, file: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for line in self.read(file).lines() {
            *counts.entry(line.split(' ').next().unwrap_or_default().to_owned()).or_default() += 1;
        }
        counts
    }

    /// Decides what is doubtful. `asked_for` tells how long ago an allocation was made; none when there is no such
    /// allocation.
    pub(super) fn resolve(&self, asked_for: impl Fn(&str) -> Result<Option<Duration>>) -> Result<()> {
        // Not under the lock: the server takes its time.
        let mut doubtful = std::mem::take(&mut lock(&self.ledger).doubtful).into_iter();
        while let Some(doubt) = doubtful.next() {
            let age = match asked_for(&doubt.seen.alloc) {
                Ok(age) => age,
                Err(error) => {
                    lock(&self.ledger).doubtful.extend([doubt].into_iter().chain(doubtful));
                    return Err(error);
                }
            };
            let asked =
                age.and_then(|age| Instant::now().checked_sub(age)).map_or(doubt.since, |asked| asked.min(doubt.since));
            let mut ledger = lock(&self.ledger);
            if !has_cause(&ledger.wanted, &doubt.seen, asked, doubt.ended) {
                ledger.violations.push(doubt.what);
            }
        }
        Ok(())
    }

    /// Everything that must not have been.
    pub(super) fn violations(&self) -> Vec<String> {
        let mut all = lock(&self.ledger).violations.clone();
        all.extend(
            self.read("overlaps")
                .lines()
                .map(|line| format!("DUPLICATE: an instance of {line} began while another one of its slot lived")),
        );
        all
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// A witness that has panicked must not silence the others.
fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Instances among the machine's processes.
fn look(world: &str, hosts: &BTreeMap<u64, &'static str>) -> BTreeMap<u32, Seen> {
    let pids = crate::local::pids();
    let wanted = format!("sleep\0{SLEEP}\0");
    let seen = |pid: u32| -> Option<Seen> {
        let file = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        if file("cmdline") != wanted.as_bytes() {
            return None;
        }
        let environment = file("environ");
        let variables: BTreeMap<&str, &str> =
            environment.split(|b| *b == 0).filter_map(|word| std::str::from_utf8(word).ok()?.split_once('=')).collect();
        if variables.get("CHAOS_WORLD") != Some(&world) {
            return None;
        }
        let process = Process::of(pid)?;
        let namespace = fs::metadata(format!("/proc/{pid}/ns/net")).ok()?.ino();
        let slot = ((*variables.get("NOMAD_JOB_ID")?).to_owned(), variables.get("NOMAD_ALLOC_INDEX")?.parse().ok()?);
        let version = variables.get("CHAOS_VERSION")?.parse().ok()?;
        let alloc = (*variables.get("NOMAD_ALLOC_ID")?).to_owned();
        let queued = variables.contains_key("SLURM_JOB_ID");
        // Containers have a namespace each.
        let host = hosts.get(&namespace).copied().unwrap_or("engine");
        Some(Seen { slot, version, host, alloc, queued, process })
    };
    pids.filter_map(|pid| Some((pid, seen(pid)?))).collect()
}

/// Compares what is seen with what was seen, and with what was asked for.
fn judge(ledger: &mut Ledger, found: BTreeMap<u32, Seen>) {
    let now = Instant::now();
    let held = std::mem::take(&mut ledger.live);
    for (pid, (seen, since)) in held {
        if seen.process.is_alive() {
            ledger.live.insert(pid, (seen, since));
            continue;
        }
        ledger.ended.push(seen.process);
        let begun = SystemTime::now() - since.elapsed();
        let forgotten = seen.queued && ledger.unsaved.iter().any(|unsaved| unsaved.has(begun));
        if !ledger.excused.remove(&pid) && !forgotten && !has_cause(&ledger.wanted, &seen, since, now) {
            let (job, index) = &seen.slot;
            let what = format!(
                "LOST: {job}[{index}] version {} on {} (process {pid}, of allocation {}) has ended after {:.1} s, and \
                    nobody asked for that",
                seen.version,
                seen.host,
                seen.alloc,
                since.elapsed().as_secs_f64()
            );
            ledger.doubtful.push(Doubt { seen, since, ended: now, what });
        }
    }
    for (pid, seen) in found {
        if !ledger.ended.contains(&seen.process) {
            ledger.live.entry(pid).or_insert((seen, now));
        }
    }
    let mut slots: BTreeMap<&Slot, Vec<&Seen>> = BTreeMap::new();
    for (seen, _) in ledger.live.values() {
        slots.entry(&seen.slot).or_default().push(seen);
    }
    let mut double = Vec::new();
    for ((job, index), all) in slots {
        // Each was seen alive before: who is alive now has lived beside the others.
        let alive: Vec<_> = all
            .iter()
            .filter(|seen| seen.process.is_alive())
            .map(|s| format!("{} on {}", s.process.pid, s.host))
            .collect();
        if alive.len() > 1 {
            double.push(format!("DUPLICATE: {job}[{index}] lives {} times: {}", alive.len(), alive.join(", ")));
        }
    }
    for violation in double {
        if !ledger.violations.contains(&violation) {
            ledger.violations.push(violation);
        }
    }
}

/// How many starts there were of each slot whose jobs Slurm may have forgotten. A start that Slurm has made tells when
/// it was, in seconds of the day's clock.
fn forgotten(begun: &str, unsaved: &[Unsaved]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in begun.lines() {
        let mut words = line.split(' ');
        let (slot, at) = (words.next().unwrap_or_default(), words.nth(1).and_then(|at| at.parse().ok()));
        let began = |at| unsaved.iter().any(|unsaved| unsaved.has(UNIX_EPOCH + Duration::from_secs(at)));
        if at.is_some_and(began) {
            *counts.entry(slot.to_owned()).or_default() += 1;
        }
    }
    counts
}

/// Whether something else was wanted of its slot while it lived.
fn has_cause(wanted: &BTreeMap<String, Wanted>, seen: &Seen, since: Instant, ended: Instant) -> bool {
    let (job, index) = &seen.slot;
    let Some(wanted) = wanted.get(job) else { return true };
    // The one in force when it began, and all later ones.
    let first = wanted.iter().rposition(|(at, _)| *at <= since).unwrap_or(0);
    wanted[first..]
        .iter()
        .take_while(|(at, _)| *at <= ended)
        .any(|(_, what)| what.is_none_or(|(version, count)| version != seen.version || *index >= count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(version: u32, index: u32) -> Seen {
        let process = Process::of(std::process::id()).expect("this process");
        Seen { slot: ("j".into(), index), version, host: "a", alloc: "x".into(), queued: false, process }
    }

    #[test]
    fn an_end_needs_a_cause() {
        let t0 = Instant::now();
        let at = |ms| t0 + Duration::from_millis(ms);
        let wanted = |list: &[(u64, Option<(u32, u32)>)]| {
            BTreeMap::from([("j".to_owned(), list.iter().map(|(t, w)| (at(*t), *w)).collect())])
        };
        let steady = wanted(&[(0, Some((1, 2)))]);
        assert!(!has_cause(&steady, &seen(1, 1), at(5), at(100)));
        assert!(has_cause(&steady, &seen(1, 2), at(5), at(100)), "beyond the count");
        assert!(has_cause(&steady, &seen(0, 0), at(5), at(100)), "a version that is not wanted");
        let edited = wanted(&[(0, Some((1, 2))), (10, Some((2, 2))), (20, Some((3, 1)))]);
        assert!(has_cause(&edited, &seen(1, 0), at(5), at(100)));
        assert!(has_cause(&edited, &seen(2, 0), at(15), at(100)));
        assert!(!has_cause(&edited, &seen(3, 0), at(25), at(100)));
        assert!(has_cause(&wanted(&[(0, Some((1, 2))), (10, None)]), &seen(1, 0), at(5), at(100)), "stopped");
        assert!(!has_cause(&edited, &seen(1, 0), at(5), at(9)), "what is asked for afterwards is no cause");
    }

    #[test]
    fn two_that_live_are_told() {
        let mut ledger = Ledger::default();
        let own = std::process::id();
        let mut other = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut second = seen(1, 0);
        second.process = Process::of(other.id()).expect("it");
        judge(&mut ledger, BTreeMap::from([(own, seen(1, 0))]));
        assert!(ledger.violations.is_empty());
        judge(&mut ledger, BTreeMap::from([(own, seen(1, 0)), (other.id(), second)]));
        other.kill().expect("kill");
        other.wait().expect("wait");
        assert!(
            ledger.violations.len() == 1 && ledger.violations[0].starts_with("DUPLICATE"),
            "{:?}",
            ledger.violations
        );
        ledger.wanted.insert("j".into(), vec![(Instant::now() - Duration::from_secs(1), Some((1, 1)))]);
        judge(&mut ledger, BTreeMap::new());
        assert!(ledger.doubtful.iter().any(|doubt| doubt.what.starts_with("LOST")));
    }

    #[test]
    fn what_a_killed_controller_had_not_saved_may_end() {
        let ended_with = |unsaved: Vec<Unsaved>, queued| {
            let mut process = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
            let mut one = seen(1, 0);
            (one.process, one.queued) = (Process::of(process.id()).expect("it"), queued);
            let mut ledger = Ledger { unsaved, ..Ledger::default() };
            ledger.wanted.insert("j".into(), vec![(Instant::now() - Duration::from_secs(1), Some((1, 1)))]);
            judge(&mut ledger, BTreeMap::from([(process.id(), one)]));
            process.kill().expect("kill");
            process.wait().expect("wait");
            judge(&mut ledger, BTreeMap::new());
            ledger.doubtful.len()
        };
        let now = SystemTime::now();
        let saved = |seconds| Unsaved::since(Some(now - Duration::from_secs(seconds)));
        let over = || Unsaved { to: Some(now - Duration::from_secs(1)), ..saved(60) };
        // On a busy machine the last save may be long ago.
        assert_eq!(ended_with(vec![over(), saved(30)], true), 0);
        assert_eq!(ended_with(vec![Unsaved::since(None)], true), 0, "nothing was ever saved");
        assert_eq!(ended_with(vec![over()], true), 1, "it began after the next controller");
        let later = || Unsaved { from: now + Duration::from_secs(60), to: None };
        assert_eq!(ended_with(vec![later()], true), 1, "it was saved");
        assert_eq!(ended_with(vec![saved(30)], false), 1, "Slurm does not run it");
    }

    #[test]
    fn starts_that_a_killed_controller_had_not_saved_may_be_repeated() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let begun = "batch-0.0 0 100\nbatch-0.1 0 108\nbatch-0.1 0 115\nbatch-0.1 0 131\nbatch-1.0 0 \nfar.0 2\n";
        let of = |unsaved: &[Unsaved]| forgotten(begun, unsaved);
        assert_eq!(of(&[]), BTreeMap::new());
        let mut unsaved = [Unsaved::since(Some(at(110)))];
        assert_eq!(unsaved[0].from, at(108), "what is saved was read before");
        assert_eq!(of(&unsaved), BTreeMap::from([("batch-0.1".to_owned(), 3)]), "no controller is back");
        unsaved[0].to = Some(at(130));
        assert_eq!(of(&unsaved), BTreeMap::from([("batch-0.1".to_owned(), 2)]));
        assert_eq!(of(&[Unsaved { from: at(200), to: None }]), BTreeMap::new());
    }

    #[test]
    fn a_controller_that_is_back_begins_what_it_knows() {
        let watch = idle();
        watch.controller_died(Some(SystemTime::now() - Duration::from_secs(5)));
        let much_later = SystemTime::now() + Duration::from_secs(3600);
        assert!(lock(&watch.ledger).unsaved[0].has(much_later));
        watch.controller_is_back();
        let ledger = lock(&watch.ledger);
        assert!(ledger.unsaved[0].has(SystemTime::now()) && !ledger.unsaved[0].has(much_later));
    }

    /// One that looks at nothing.
    fn idle() -> Watch {
        Watch { dir: PathBuf::new(), ledger: Arc::default(), looks: Arc::default(), stop: Arc::default(), thread: None }
    }

    #[test]
    fn what_was_asked_for_before_it_was_unwanted_may_end() {
        let long_ago = |ms| Instant::now() - Duration::from_millis(ms);
        let judged = |asked: Option<Duration>| {
            let watch = idle();
            let wanted =
                vec![(long_ago(9000), Some((1, 4))), (long_ago(3000), Some((1, 0))), (long_ago(2000), Some((1, 4)))];
            lock(&watch.ledger).wanted.insert("j".into(), wanted);
            lock(&watch.ledger).doubtful.push(Doubt {
                seen: seen(1, 3),
                since: long_ago(1000),
                ended: long_ago(800),
                what: "LOST".into(),
            });
            assert!(watch.resolve(|_| anyhow::bail!("no answer")).is_err());
            assert_eq!(watch.violations().len(), 0);
            watch.resolve(|_| Ok(asked)).expect("an answer");
            assert_eq!(lock(&watch.ledger).doubtful.len(), 0);
            watch.violations().len()
        };
        assert_eq!(judged(Some(Duration::from_millis(5000))), 0, "its slot was unwanted meanwhile");
        assert_eq!(judged(Some(Duration::from_millis(1500))), 1, "nobody has asked for its end since");
        assert_eq!(judged(None), 1, "an allocation that nobody knows");
    }
}
