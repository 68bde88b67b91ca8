//! The run directory of an instance. All work on files; run it on a thread that may block.
//!
//! A directory that was given to the user of its job is that user's: work in it has the user's rights ([`as_owner`]),
//! and what Drover's own order depends on, lock and epoch, lies out of the user's reach.
//!
//! ```text
//! identity                    the runtime's own name
//! instances/NAME/about.json   owner, key, slot; what makes it an instance
//!                epoch        highest accepted epoch
//!                lock         held (flock) while an epoch is compared and the change is made
//!                claim        who may start: a job, or nobody any more
//!                alive        its lock (flock) is shared by all that runs of it
//!                sending, job a submission was begun, of which arrays it is part; its job
//!                gate.sh task.sh env beside.sh task/ alloc/ out err exit
//!                acknowledged the result was stored: only the claim is kept
//! given/NAME/epoch lock       those of a directory that was given to a user
//! ```

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use driver_sdk::RemoteError;
use hpc::Answer;
use hpc::files::{self, held, make_writable, open, probe, put, read, remove, unclear, unique};
use hpc::rights::{Owner, as_owner, owner};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::tables::JobId;

/// How long somebody else may hold the lock of a directory: what is done under it takes no time.
const LOCKED_FOR: Duration = Duration::from_secs(5);
/// How often the lock is tried.
const LOCK_AGAIN: Duration = Duration::from_millis(10);

/// What an instance is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) slot: String,
    pub(crate) task: String,
}

/// Who has the claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Claim {
    /// A job of Slurm: its name there, its own number, restart count, start in seconds since 1970, nodes.
    Job { id: JobId, number: u64, restarts: u64, at: u64, nodes: String },
    /// Nobody, before there was an instance.
    Sealed,
    /// Nobody, although the instance had been asked for; why.
    Over(String),
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    /// Seconds since 1970; 0 when it never started.
    pub(crate) at: u64,
    /// Why, where the code does not say enough.
    pub(crate) why: String,
    pub(crate) oom: bool,
}

/// A job of an array that was submitted for an instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// Name of the array.
    pub(crate) array: String,
    pub(crate) index: u32,
}

/// Everything that the files say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Files {
    pub(crate) epoch: u64,
    pub(crate) claim: Option<Claim>,
    pub(crate) exit: Option<Exit>,
    /// The job that `sbatch` has answered.
    pub(crate) job: Option<JobId>,
    /// Submissions as part of an array, also those whose answer is not known.
    pub(crate) arrays: Vec<Member>,
    /// There was none under its own name.
    pub(crate) only_arrays: bool,
    /// Age of the newest submission.
    pub(crate) sent_for: Option<Duration>,
    pub(crate) acknowledged: bool,
    /// Number of the user to whom the directory was given; `None`: it is the agent's.
    pub(crate) user: Option<u32>,
}

/// Characters of a reason, and of an expression of nodes.
const LONGEST_WHY: usize = 4096;
const LONGEST_NODES: usize = 65_536;

/// Begin of the names of directories that are being removed.
const ASIDE: &str = ".gone.";

/// What stays of a closed key.
const KEPT: [&str; 5] = ["claim", "about.json", "epoch", "lock", "acknowledged"];

/// Makes a file with this content unless there is one. Who has it is decided by reading it.
fn claim(path: &Path, text: &str) -> Answer<()> {
    let temporary = path.with_extension(format!("tmp.{}", unique()));
    let link = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{text} {}", unique())?;
        file.sync_all()?;
        match fs::hard_link(&temporary, path) {
            Err(why) if why.kind() != ErrorKind::AlreadyExists => Err(why),
            _ => Ok(()),
        }
    };
    let linked = link();
    let _ = fs::remove_file(&temporary);
    linked.map_err(unclear("claim", path))
}

/// The runtime: a directory that all managers and compute nodes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Base {
    pub(crate) root: PathBuf,
    pub(crate) identity: String,
}

impl Base {
    /// Opens a runtime; makes it where there is none. Where it holds directories of several users, each of them can
    /// reach their own.
    pub(crate) fn open(root: &Path, several_users: bool) -> Answer<Base> {
        let instances = root.join("instances");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&instances).map_err(unclear("make", &instances))?;
        for dir in [root, &instances].into_iter().filter(|_| several_users) {
            let found = fs::metadata(dir).map_err(unclear("look at", dir))?;
            let mode = found.permissions().mode();
            // Whoever could replace a directory there could lead the agent anywhere.
            if rustix::process::geteuid().is_root() && (found.uid() != 0 || mode & 0o022 != 0) {
                return Err(RemoteError::could_not_ask(format!(
                    "{} belongs to the user {} and has mode {:o}; with `users` it must be root's, and writable by \
                        nobody else",
                    dir.display(),
                    found.uid(),
                    mode & 0o7777
                )));
            }
            if mode & 0o111 != 0o111 {
                let open = fs::Permissions::from_mode(mode | 0o111);
                fs::set_permissions(dir, open).map_err(unclear("let users enter", dir))?;
            }
        }
        let path = root.join("identity");
        if read(&path)?.is_none() {
            let mut random = [0_u8; 8];
            File::open("/dev/urandom")
                .and_then(|mut file| file.read_exact(&mut random))
                .map_err(unclear("read", Path::new("/dev/urandom")))?;
            let id: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
            claim(&path, &id)?;
        }
        let text = read(&path)?.unwrap_or_default();
        let identity = text.split_whitespace().next().unwrap_or_default().to_owned();
        match identity.len() {
            16 => {
                let base = Base { root: root.to_owned(), identity };
                base.tidy();
                Ok(base)
            }
            _ => Err(RemoteError::could_not_ask(format!("{} holds no identity", path.display()))),
        }
    }

    /// Removes what a process that ended meanwhile was about to remove.
    fn tidy(&self) {
        for dir in ["instances", "given"] {
            let entries = fs::read_dir(self.root.join(dir)).into_iter().flatten().flatten();
            let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
            for name in names.filter(|name| name.starts_with(ASIDE)) {
                if let Err(why) = self.place(&name).remove() {
                    tracing::warn!(%why, "what is left of a refused submission stays");
                }
            }
        }
    }

    /// Refuses to conclude anything from a directory that is not this runtime, such as one that is not mounted.
    pub(crate) fn here(&self) -> Answer<()> {
        let path = self.root.join("identity");
        let found = read(&path)?.unwrap_or_default();
        match found.split_whitespace().next() == Some(self.identity.as_str()) {
            true => Ok(()),
            false => Err(RemoteError::could_not_ask(format!(
                "{} is not the runtime {}: is the file system mounted?",
                self.root.display(),
                self.identity
            ))),
        }
    }

    /// The run directory of this name.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let mut dir = self.root.join("instances");
        dir.push(name);
        dir
    }

    pub(crate) fn place(&self, name: &str) -> Place {
        Place { dir: self.dir(name), given: self.root.join("given").join(name) }
    }

    /// Names of all run directories. Writing into the directory makes a network file system forget what it kept of it.
    pub(crate) fn names(&self) -> Answer<Vec<String>> {
        let dir = self.root.join("instances");
        probe(&dir)?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&dir).map_err(unclear("list", &dir))? {
            let entry = entry.map_err(unclear("list", &dir))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// When a file of a directory was last made, replaced or removed; `None` when that cannot be read.
pub(crate) fn changed(dir: &Path) -> Option<SystemTime> {
    fs::metadata(dir).and_then(|dir| dir.modified()).ok()
}

/// One run directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    /// Where lock and epoch are once the directory was given to a user.
    pub(crate) given: PathBuf,
}

impl Place {
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn as_owner<T>(&self, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
        as_owner(&self.dir, work)
    }

    /// Whom the directory belongs to; `None` where there is none.
    pub(crate) fn owner(&self) -> Answer<Option<Owner>> {
        owner(&self.dir).map_err(unclear("look at", &self.dir))
    }

    pub(crate) fn about(&self) -> Answer<Option<About>> {
        let path = self.file("about.json");
        let Some(text) = self.as_owner(|| read(&path))? else { return Ok(None) };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|why| RemoteError::could_not_ask(format!("{} cannot be read: {why}", path.display())))
    }

    /// As [`Place::about`], of this owner only.
    pub(crate) fn about_of(&self, key: &str, owner: &str) -> Answer<Option<About>> {
        match self.about()? {
            Some(about) if about.owner != owner => Err(RemoteError::wrong_request(format!(
                "the instance {key} belongs to another cluster, {}",
                about.owner
            ))),
            about => Ok(about),
        }
    }

    /// What the directory of this name holds; `None` where there is no instance.
    pub(crate) fn about_and_files(&self, name: &str) -> Answer<Option<(About, Files)>> {
        match self.about()? {
            Some(about) if files::name(&about.key) == name => Ok(Some((about, self.files()?))),
            Some(about) => Err(RemoteError::could_not_ask(format!(
                "{} says that it is the directory of the key {:?}",
                self.dir.display(),
                about.key
            ))),
            None => Ok(None),
        }
    }

    /// Makes the directory of an instance that nobody has asked for yet. It becomes the user's, unless somebody has
    /// asked for the instance before; without a user it stays the agent's.
    pub(crate) fn make(&self, about: &About, user: Option<Owner>) -> Answer<()> {
        let given = self.was_given();
        match fs::DirBuilder::new().mode(0o700).create(&self.dir) {
            // Lock and epoch of a former one, whose removal broke off. With these nobody else gives this one away.
            Ok(()) if given => remove(&self.given).map_err(unclear("remove", &self.given))?,
            Ok(()) => {}
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            Err(why) => return Err(unclear("make", &self.dir)(why)),
        }
        if let Some(user) = user {
            self.give(user)?;
        }
        let text = serde_json::to_string(about).map_err(RemoteError::could_not_ask)?;
        match self.about_of(&about.key, &about.owner)? {
            Some(_) => Ok(()),
            None => self.as_owner(|| put(&self.file("about.json"), 0o600, text.as_bytes())),
        }
    }

    /// Gives a directory of the agent away, for which nothing was submitted and which nobody has closed.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`] also for one that is somebody else's and has not begun.
    fn give(&self, user: Owner) -> Answer<()> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        // Whoever is about to close it waits, and then does so with the other lock.
        let lock = self.lock()?;
        let begun = || {
            let names = ["claim", "sending", "job", "acknowledged"];
            names.iter().any(|name| fs::symlink_metadata(self.file(name)).is_ok())
        };
        match self.owner()? {
            _ if begun() => return Ok(()),
            Some(owner) if owner == user && self.was_given() => return Ok(()),
            // It is the user's already when root died before the last step.
            Some(owner) if !self.was_given() && (owner.uid == 0 || owner == user) => {}
            owner => {
                return Err(RemoteError::could_not_ask(format!(
                    "{} belongs to the user {} and not to {}; does the file system take root for somebody else \
                        (root_squash)?",
                    self.dir.display(),
                    owner.map_or_else(|| "?".to_owned(), |owner| owner.uid.to_string()),
                    user.uid
                )));
            }
        }
        let cannot = || unclear("give to the user of the job (it needs a file system without root_squash)", &self.dir);
        for entry in fs::read_dir(&self.dir).map_err(unclear("list", &self.dir))? {
            let path = entry.map_err(unclear("list", &self.dir))?.path();
            lchown(&path, Some(user.uid), Some(user.gid)).map_err(cannot())?;
        }
        lchown(&self.dir, Some(user.uid), Some(user.gid)).map_err(cannot())?;
        // From the last step on the other lock is taken, so that step is one.
        let ready = self.given.with_extension("new");
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&ready).map_err(unclear("make", &ready))?;
        if let Some(epoch) = self.as_owner(|| read(&self.file("epoch")))? {
            put(&ready.join("epoch"), 0o600, epoch.as_bytes())?;
        }
        fs::rename(&ready, &self.given).map_err(unclear("make", &self.given))?;
        drop(lock);
        Ok(())
    }

    /// Where lock and epoch are.
    fn order(&self) -> &Path {
        if self.was_given() { &self.given } else { &self.dir }
    }

    /// Whether the directory is a user's. Only an agent as root can give one away, and see that it was.
    fn was_given(&self) -> bool {
        fs::symlink_metadata(&self.given).is_ok()
    }

    /// Number of the user to whom the directory was given.
    pub(crate) fn given_to(&self) -> Answer<Option<u32>> {
        if self.was_given() { Ok(self.owner()?.map(|owner| owner.uid)) } else { Ok(None) }
    }

    /// Holds the lock of the directory until the drop.
    fn lock(&self) -> Answer<File> {
        let begun = Instant::now();
        loop {
            let order = self.order();
            let path = order.join("lock");
            let lock = open(&path, OpenOptions::new().create(true).truncate(false).write(true).mode(0o600))
                .map_err(unclear("open", &path))?;
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                // It may have been given away meanwhile.
                Ok(()) if order == self.order() => return Ok(lock),
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) if begun.elapsed() < LOCKED_FOR => std::thread::sleep(LOCK_AGAIN),
                Err(Errno::WOULDBLOCK) => {
                    return Err(RemoteError::could_not_ask(format!(
                        "somebody has held the lock {} for {} s",
                        path.display(),
                        LOCKED_FOR.as_secs()
                    )));
                }
                Err(why) => {
                    return Err(RemoteError::could_not_ask(format!(
                        "could not lock {}: {why}; mount the file system with locks that all nodes share",
                        path.display()
                    )));
                }
            }
        }
    }

    fn epoch(&self) -> Answer<u64> {
        let text = read(&self.order().join("epoch"))?;
        Ok(text.and_then(|text| text.trim().parse().ok()).unwrap_or(0))
    }

    pub(crate) fn changed(&self) -> Option<SystemTime> {
        changed(&self.dir)
    }

    pub(crate) fn files(&self) -> Answer<Files> {
        self.with_order(self.as_owner(|| self.read_files())?)
    }

    /// Adds what is out of the user's reach.
    fn with_order(&self, files: Files) -> Answer<Files> {
        Ok(Files { epoch: self.epoch()?, user: self.given_to()?, ..files })
    }

    fn read_files(&self) -> Answer<Files> {
        let exit = read(&self.file("exit"))?.as_deref().and_then(read_exit);
        let sent = fs::symlink_metadata(self.file("job")).or_else(|_| fs::symlink_metadata(self.file("sending"))).ok();
        let sending = read(&self.file("sending"))?.unwrap_or_default();
        let arrays = members(&sending);
        Ok(Files {
            epoch: 0,
            claim: read(&self.file("claim"))?.map(|text| read_claim(&text)).transpose()?,
            exit,
            job: read(&self.file("job"))?.and_then(|text| text.trim().parse().ok()),
            only_arrays: !arrays.is_empty() && arrays.len() == sending.lines().count(),
            arrays,
            // A clock that is ahead over there makes it just now.
            sent_for: sent.and_then(|s| s.modified().ok()).map(|at| at.elapsed().unwrap_or_default()),
            acknowledged: read(&self.file("acknowledged"))?.is_some(),
            user: None,
        })
    }

    /// As [`Place::files`], and what is missing is missing: a network file system forgets what it kept of the
    /// directory.
    pub(crate) fn files_for_sure(&self) -> Answer<Files> {
        self.files_for_sure_since().map(|(_, files)| files)
    }

    /// As [`Place::files_for_sure`], with the time of the directory's last change before they were read.
    pub(crate) fn files_for_sure_since(&self) -> Answer<(SystemTime, Files)> {
        let gone = Files { acknowledged: true, ..Files::default() };
        let (changed, files) = self.as_owner(|| match probe(&self.dir) {
            Ok(()) => Ok((self.changed().unwrap_or(SystemTime::UNIX_EPOCH), self.read_files()?)),
            Err(_) if !self.dir.exists() => Ok((SystemTime::UNIX_EPOCH, gone)),
            Err(why) => Err(why),
        })?;
        Ok((changed, self.with_order(files)?))
    }

    /// Holds the lock of the directory, refuses an older epoch, and takes a newer one over before the change is made.
    /// The change has the agent's rights.
    pub(crate) fn under<T>(&self, epoch: u64, change: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let _lock = self.lock()?;
        let accepted = self.epoch()?;
        if epoch < accepted {
            return Err(RemoteError::StaleEpoch { given: epoch, accepted });
        }
        if epoch > accepted {
            put(&self.order().join("epoch"), 0o600, epoch.to_string().as_bytes())?;
        }
        change()
    }

    /// Takes the claim so that no job starts, if no job has it; says who has it.
    pub(crate) fn close(&self, claim_as: &Claim) -> Answer<Claim> {
        let text = match claim_as {
            Claim::Sealed => "sealed".to_owned(),
            Claim::Over(why) => format!("over {}", why.replace('\n', " ").replace(' ', "\u{a0}")),
            Claim::Job { .. } => return Err(RemoteError::wrong_request("only a job claims for a job")),
        };
        let path = self.file("claim");
        let found = self.as_owner(|| match read(&path)? {
            // Nothing has to be written, which a user without room could not do.
            Some(found) => Ok(Some(found)),
            None => {
                claim(&path, &text)?;
                read(&path)
            }
        })?;
        read_claim(&found.ok_or_else(|| RemoteError::could_not_ask(format!("{} has disappeared", path.display())))?)
    }

    /// Writes down how a run has ended that could not do it itself, and says how it has: a result that has come since
    /// its files were read counts.
    pub(crate) fn ended(&self, exit: &Exit) -> Answer<Exit> {
        let oom = if exit.oom { "oom " } else { "" };
        let text = format!("{} {} {oom}{}\n", exit.code, exit.at, exit.why.replace('\n', " "));
        let path = self.file("exit");
        self.as_owner(|| {
            files::put_unless_there(&path, text.as_bytes(), |text| read_exit(text).is_some())?;
            Ok(read(&path)?.as_deref().and_then(read_exit).unwrap_or_else(|| exit.clone()))
        })
    }

    /// Whether a submission was begun whose answer may not be known.
    pub(crate) fn was_sending(&self) -> bool {
        fs::symlink_metadata(self.file("sending")).is_ok()
    }

    /// Notes that a submission is about to be sent, by itself or as part of an array: a line for each.
    pub(crate) fn sending(&self, member: Option<&Member>) -> Answer<()> {
        let path = self.file("sending");
        let line = format!("{}\n", sending_line(member));
        let write = || -> io::Result<()> {
            let mut file = open(&path, OpenOptions::new().append(true).create(true).mode(0o600))?;
            file.write_all(line.as_bytes())?;
            file.sync_all()
        };
        self.as_owner(|| write().map_err(unclear("write", &path)))
    }

    /// Takes this [`Place::sending`] back: nothing was taken.
    pub(crate) fn unsent(&self, member: Option<&Member>) -> Answer<()> {
        let (path, ours) = (self.file("sending"), sending_line(member));
        let _lock = self.lock()?;
        self.as_owner(|| {
            let text = read(&path)?.unwrap_or_default();
            let mut lines: Vec<&str> = text.lines().collect();
            // Another manager may have noted one since.
            if let Some(at) = lines.iter().rposition(|line| *line == ours) {
                lines.remove(at);
            }
            match lines.is_empty() {
                true => remove(&path).map_err(unclear("remove", &path)),
                false => put(&path, 0o600, format!("{}\n", lines.join("\n")).as_bytes()),
            }
        })
    }

    /// Notes the job.
    pub(crate) fn sent(&self, id: JobId) -> Answer<()> {
        self.as_owner(|| put(&self.file("job"), 0o600, id.to_string().as_bytes()))
    }

    /// Keeps the claim and what it belongs to, removes the rest.
    pub(crate) fn acknowledge(&self) -> Answer<()> {
        self.as_owner(|| {
            put(&self.file("acknowledged"), 0o600, b"")?;
            self.remove_all_but(&KEPT)
        })
    }

    /// Removes what was laid out for a key that is sealed now: the task's files and secrets among it. What was
    /// submitted stays noted, so that it can be taken out of the queue.
    pub(crate) fn strip(&self) -> Answer<()> {
        self.as_owner(|| self.remove_all_but(&[&KEPT[..], &["sending", "job"]].concat()))
    }

    fn remove_all_but(&self, kept: &[&str]) -> Answer<()> {
        for entry in fs::read_dir(&self.dir).map_err(unclear("list", &self.dir))? {
            let path = entry.map_err(unclear("list", &self.dir))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !kept.contains(&name.as_str()) {
                remove(&path).map_err(unclear("remove", &path))?;
            }
        }
        Ok(())
    }

    /// Removes the directory, unless an earlier submission may have been taken; says whether it did. A claim shows that
    /// one was, or that the key is closed.
    pub(crate) fn remove_if_unsent(&self) -> Answer<bool> {
        let lock = self.lock()?;
        if self.was_sending() {
            return Ok(false);
        }
        // At once, and out of the way of a job that comes all the same and of the next create: its files may be many.
        let name = format!("{ASIDE}{}", unique());
        let aside = Place { dir: self.dir.with_file_name(&name), given: self.given.with_file_name(&name) };
        let moved = |from: &Path, to: &Path| fs::rename(from, to).or_else(missing).map_err(unclear("move", from));
        moved(&self.dir, &aside.dir)?;
        if fs::symlink_metadata(aside.file("claim")).is_ok() {
            moved(&aside.dir, &self.dir)?;
            return Ok(false);
        }
        moved(&self.given, &aside.given)?;
        // A network file system keeps the directory of a file that is open.
        drop(lock);
        if let Err(why) = aside.remove() {
            tracing::warn!(%why, "what is left of a refused submission goes when the plugin starts again");
        }
        Ok(true)
    }

    /// Removes the directory: no submission of it can be on its way.
    pub(crate) fn remove(&self) -> Answer<()> {
        let outside = || -> Answer<()> {
            let both = [self.given.with_extension("new"), self.given.clone()];
            both.iter().try_for_each(|dir| remove(dir).map_err(unclear("remove", dir)))
        };
        if self.owner()?.is_none() {
            return outside();
        }
        // What is in it is its user's, and goes with the user's rights.
        self.as_owner(|| {
            self.remove_all_but(&[]).or_else(|_| {
                let _ = make_writable(&self.dir);
                self.remove_all_but(&[])
            })
        })?;
        // Not with all that is in it: by then a user may have put something there that root must not touch.
        fs::remove_dir(&self.dir).map_err(unclear("remove", &self.dir))?;
        outside()
    }

    /// Whether something that the gate has started still runs, on any node. What has closed all files that it was
    /// given is not seen.
    pub(crate) fn alive(&self) -> Answer<bool> {
        self.as_owner(|| held(&self.file("alive")))
    }

    /// How long ago the key was sealed or acknowledged.
    pub(crate) fn closed_for(&self) -> Option<Duration> {
        let of = |name: &str| fs::symlink_metadata(self.file(name));
        let at = of("acknowledged").or_else(|_| of("claim")).ok()?;
        at.modified().ok()?.elapsed().ok()
    }
}

/// What gates of older releases have not written is a job in no array.
fn job_claim(me: &str, at: &str, nodes: &str, number: Option<&str>) -> Option<Claim> {
    let mut parts = me.split('.');
    let id: JobId = parts.next()?.parse().ok()?;
    Some(Claim::Job {
        id,
        number: number.map_or(Ok(id.number), str::parse).ok()?,
        restarts: parts.next()?.parse().ok()?,
        at: at.parse().ok()?,
        nodes: if nodes == "-" { String::new() } else { files::short(nodes, LONGEST_NODES) },
    })
}

fn missing(why: io::Error) -> io::Result<()> {
    if why.kind() == ErrorKind::NotFound { Ok(()) } else { Err(why) }
}

/// What `exit` says; its user may have written anything.
fn read_exit(text: &str) -> Option<Exit> {
    let mut words = text.trim_end().splitn(3, ' ');
    let (code, at) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let why = words.next().unwrap_or_default();
    let oom = why.strip_prefix("oom ");
    Some(Exit { code, at, why: files::short(oom.unwrap_or(why), LONGEST_WHY), oom: oom.is_some() })
}

/// A submission as a line of `sending`.
fn sending_line(member: Option<&Member>) -> String {
    member.map_or("alone".to_owned(), |member| format!("{} {}", member.array, member.index))
}

/// The lines of `sending`; of a submission by itself there is none.
fn members(text: &str) -> Vec<Member> {
    let member = |line: &str| {
        let (array, index) = line.split_once(' ')?;
        Some(Member { array: array.to_owned(), index: index.parse().ok()? })
    };
    text.lines().filter_map(member).collect()
}

fn read_claim(text: &str) -> Answer<Claim> {
    let words: Vec<&str> = text.split(' ').map(str::trim).collect();
    let claim = match words[..] {
        ["sealed", ..] => Some(Claim::Sealed),
        ["over", why, ..] => Some(Claim::Over(why.replace('\u{a0}', " "))),
        [me, "job", at, nodes] => job_claim(me, at, nodes, None),
        [me, "job", at, nodes, number] => job_claim(me, at, nodes, Some(number)),
        _ => None,
    };
    claim.ok_or_else(|| RemoteError::could_not_ask(format!("the claim {text:?} cannot be read")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path) -> Place {
        let about = About { key: "k".into(), owner: "o".into(), slot: "s".into(), task: "t".into() };
        let place = Base::open(dir, false).expect("opened").place("k");
        place.make(&about, None).expect("made");
        place
    }

    #[test]
    fn one_identity_and_none_of_an_empty_mount() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = Base::open(dir.path(), false).expect("opened");
        assert_eq!(Base::open(dir.path(), false).expect("opened again"), base);
        base.here().expect("here");
        fs::remove_file(dir.path().join("identity")).expect("removed");
        assert!(matches!(base.here(), Err(RemoteError::CouldNotAsk(_))));
    }

    #[test]
    fn the_first_claim_stands() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        assert_eq!(place.files().expect("read").claim, None);
        let over = Claim::Over("stopped before it started".into());
        assert_eq!(place.close(&over), Ok(over.clone()));
        assert_eq!(place.close(&Claim::Sealed), Ok(over.clone()));
        assert_eq!(place.files().expect("read").claim, Some(over));
        let job = |id, number| Claim::Job { id, number, restarts: 1, at: 99, nodes: "n[1-2]".into() };
        assert_eq!(read_claim("7.1.5f0c job 99 n[1-2] 7\n"), Ok(job(JobId::single(7), 7)));
        let member = JobId { number: 7, index: Some(2) };
        assert_eq!(read_claim("7_2.1.5f0c job 99 n[1-2] 9\n"), Ok(job(member, 9)));
        // Gates of older releases.
        assert_eq!(read_claim("7.1.5f0c job 99 n[1-2]\n"), Ok(job(JobId::single(7), 7)));
        assert_eq!(read_claim("7.1 job 99 n[1-2]\n"), Ok(job(JobId::single(7), 7)));
        assert!(read_claim("").is_err() && read_claim("7 job 1 n").is_err());
    }

    #[test]
    fn a_directory_that_nobody_has_used_becomes_the_users_and_no_other_does() {
        if !rustix::process::geteuid().is_root() {
            return skip::cannot("only root can give directories away");
        }
        let dir = tempfile::tempdir().expect("a directory");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("private");
        let base = Base::open(dir.path(), true).expect("opened");
        let mode = fs::metadata(dir.path().join("instances")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o711, "users can enter, and see no names");
        let about = About { key: "k".into(), owner: "o".into(), slot: "s".into(), task: "t".into() };
        let (user, other) = (Owner { uid: 54_321, gid: 54_321 }, Owner { uid: 54_322, gid: 54_322 });
        // As of a removal that broke off.
        let left = base.place("left");
        fs::create_dir_all(&left.given).expect("made");
        left.make(&about, Some(user)).expect("given");
        assert_eq!(left.owner().expect("looked at"), Some(user));
        // As of a seal that was refused.
        let place = base.place("k");
        place.make(&about, None).expect("made");
        place.under(3, || Ok(())).expect("accepted");
        place.make(&about, Some(user)).expect("given");
        let why = place.make(&about, Some(other)).expect_err("somebody else's").to_string();
        assert!(why.contains("belongs to the user 54321"), "{why}");
        assert_eq!(place.owner().expect("looked at"), Some(user));
        assert_eq!(place.about().expect("read"), Some(about.clone()));
        assert_eq!(place.files().map(|files| (files.epoch, files.user)), Ok((3, Some(user.uid))));
        place.under(4, || place.close(&Claim::Sealed)).expect("closed");
        assert_eq!(owner(&place.dir.join("claim")).expect("looked at"), Some(user));
        let sealed = base.place("sealed");
        sealed.make(&about, None).expect("made");
        sealed.close(&Claim::Sealed).expect("closed");
        sealed.make(&about, Some(user)).expect("left as it is");
        assert_eq!(sealed.owner().expect("looked at").map(|owner| owner.uid), Some(0));
    }

    #[test]
    fn a_directory_goes_whatever_its_user_has_made_of_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        // Its user can enter it.
        Base::open(dir.path(), true).expect("opened");
        fs::create_dir_all(place.dir.join("task/closed")).expect("made");
        for closed in ["task/closed", "task", ""] {
            fs::set_permissions(place.dir.join(closed), fs::Permissions::from_mode(0o000)).expect("closed");
        }
        if rustix::process::geteuid().is_root() {
            for given in ["task/closed", "task", ""] {
                lchown(place.dir.join(given), Some(54_321), Some(54_321)).expect("given");
            }
        }
        place.remove().expect("removed");
        place.remove().expect("once more");
        assert!(!place.dir.exists());
    }

    #[test]
    fn what_a_user_puts_in_the_place_of_a_file_holds_nobody_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        let pipe = |name: &str| {
            let _ = fs::remove_file(place.file(name));
            rustix::fs::mkfifoat(rustix::fs::CWD, place.file(name), rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        };
        for name in ["exit", "claim", "sending", "about.json"] {
            pipe(name).expect("made");
            assert!(place.files().is_err() || place.about().is_err(), "{name}");
            fs::remove_file(place.file(name)).expect("removed");
        }
        for name in ["alive", "lock"] {
            pipe(name).expect("made");
            assert!(place.alive().and(place.under(1, || Ok(()))).is_err(), "{name}");
            fs::remove_file(place.file(name)).expect("removed");
        }
        let long = File::create(place.file("exit")).expect("made");
        long.set_len(1 << 40).expect("set");
        assert_eq!(place.files().map(|files| files.exit), Ok(None), "nothing of zeroes");
        let held = File::create(place.file("lock")).expect("made");
        rustix::fs::flock(&held, FlockOperation::LockExclusive).expect("locked");
        let why = place.under(1, || Ok(())).expect_err("held").to_string();
        assert!(why.contains("held the lock"), "{why}");
    }

    #[test]
    fn an_older_epoch_changes_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        place.under(5, || Ok(())).expect("accepted");
        place.under(5, || Ok(())).expect("the same again");
        let refused = place.under(3, || -> Answer<()> { panic!("it was let in") });
        assert_eq!(refused, Err(RemoteError::StaleEpoch { given: 3, accepted: 5 }));
    }

    #[test]
    fn an_acknowledged_key_keeps_its_claim_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        place.close(&Claim::Sealed).expect("closed");
        fs::create_dir(place.dir.join("task")).expect("made");
        fs::write(place.dir.join("task/x"), "x").expect("written");
        place.acknowledge().expect("acknowledged");
        place.acknowledge().expect("again");
        let files = place.files_for_sure().expect("read");
        assert!(files.acknowledged && files.claim == Some(Claim::Sealed));
        assert!(!place.dir.join("task").exists());
        assert!(place.closed_for().is_some());
    }

    #[test]
    fn what_was_refused_goes_and_what_was_claimed_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        place.sending(None).expect("noted");
        assert_eq!(place.remove_if_unsent(), Ok(false), "its answer is not known");
        place.unsent(None).expect("taken back");
        assert_eq!(place.close(&Claim::Sealed), Ok(Claim::Sealed));
        assert_eq!(place.remove_if_unsent(), Ok(false), "it is sealed");
        assert_eq!(place.files().map(|files| files.claim), Ok(Some(Claim::Sealed)));
        fs::remove_file(place.file("claim")).expect("removed");
        assert_eq!(place.remove_if_unsent(), Ok(true));
        let left = || fs::read_dir(dir.path().join("instances")).expect("listed").count();
        assert_eq!((place.dir.exists(), left()), (false, 0));
        // What a plugin has not brought to its end is no run directory, and goes with the next one.
        let base = Base::open(dir.path(), false).expect("opened");
        fs::create_dir_all(base.dir(&format!("{ASIDE}x")).join("task")).expect("made");
        assert_eq!((base.names(), left()), (Ok(Vec::new()), 1));
        Base::open(dir.path(), false).expect("opened");
        assert_eq!(left(), 0);
    }

    #[test]
    fn a_result_that_has_come_meanwhile_counts() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        let killed = Exit { code: 137, at: 9, why: "a node was lost".into(), oom: true };
        fs::write(place.file("exit"), "0 5\n").expect("written");
        let own = Exit { code: 0, at: 5, why: String::new(), oom: false };
        assert_eq!((place.ended(&killed), place.files().map(|files| files.exit)), (Ok(own.clone()), Ok(Some(own))));
        // A full disk.
        fs::write(place.file("exit"), "").expect("written");
        assert_eq!(place.ended(&killed), Ok(killed.clone()));
        assert_eq!(place.files().map(|files| files.exit), Ok(Some(killed)));
    }

    #[test]
    fn what_a_user_writes_is_kept_in_short() {
        let exit = read_exit(&format!("1 100 {}", "\u{1}".repeat(1 << 20))).expect("a result");
        assert_eq!((exit.code, exit.why.len()), (1, LONGEST_WHY));
        let claim = read_claim(&format!("7.1.5f0c job 99 {} 7", "n".repeat(1 << 20)));
        assert!(matches!(claim, Ok(Claim::Job { nodes, .. }) if nodes.len() == LONGEST_NODES));
    }

    #[test]
    fn what_a_task_has_started_is_seen_until_it_ends() {
        let dir = tempfile::tempdir().expect("a directory");
        let place = place(dir.path());
        assert_eq!(place.alive(), Ok(false));
        let path = place.dir.join("alive");
        let held = File::create(&path).expect("made");
        rustix::fs::flock(&held, FlockOperation::LockShared).expect("locked");
        assert_eq!(place.alive(), Ok(true));
        // Not by a close: a process that is being started may have the file for a moment.
        rustix::fs::flock(&held, FlockOperation::Unlock).expect("unlocked");
        assert_eq!(place.alive(), Ok(false));
    }
}
