//! The run directory of an instance. All work on files; run it on a thread that may block. It has the rights of the
//! jobs' user, to whom the directory belongs.
//!
//! ```text
//! provider                    the runtime that the directory is of
//! instances/NAME/claim        who runs it: at most one run of the job
//!                exit         its result: code, time, `oom` or `-`, and why if the driver has concluded it
//!                alive        a lock that the gate and all that it starts hold
//!                stop         signal and seconds of a stop, for the gate
//!                gate.sh task.sh env task/ alloc/ out err gate.log
//! ```

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, lchown};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_sdk::{Ensure, RemoteError};
use hpc::files::{self, held, make_writable, probe, put, read, remove, unclear};
use hpc::rights::{Owner, as_owner};
use hpc::script::{self, Gate};
use hpc::{Answer, rights};

use crate::config::TaskOptions;

/// What HTCondor adds to the gate. A signal reaches the job's first process only, which is the gate.
const GATE: Gate<'_> = Gate {
    identify: "me=\"$1.0.$random\"\nnodes=$(uname -n)\nnumber=$1\n",
    claimed: "",
    on_signal: r#"    # HTCondor ends a job by TERM; a job that was suspended is continued by CONT.
    [ "$1" = TERM ] || return 0
    signal=TERM seconds=
    read -r signal seconds 2>/dev/null < stop
    kill -s "${signal:-TERM}" "$child" 2>/dev/null || kill -s TERM "$child" 2>/dev/null
    [ -z "$seconds" ] || (sleep "$seconds" && kill -s KILL "$child") > /dev/null 2>&1 9>&- &
"#,
};

/// The directory of all run directories.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    root: PathBuf,
    provider: String,
    user: Option<Owner>,
}

impl Base {
    pub(crate) fn new(root: &Path, provider: &str, user: Option<Owner>) -> Self {
        Self { root: root.to_owned(), provider: provider.to_owned(), user }
    }

    /// Makes what is missing, or finds that the directory is another runtime's. Users can enter, and see no names.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it is not there, or no directory of this runtime.
    pub(crate) fn open(&self) -> Answer<()> {
        let exists = |why: &io::Error| why.kind() == ErrorKind::AlreadyExists;
        // Whoever comes first says whose it is; then there is a place for run directories.
        let path = self.root.join("provider");
        if read(&path)?.is_none() && !self.root.join("instances").exists() {
            let own = self.root.join(format!("provider.{}", files::unique()));
            put(&own, 0o644, self.provider.as_bytes())?;
            let linked = fs::hard_link(&own, &path);
            let _ = fs::remove_file(&own);
            linked.or_else(|why| if exists(&why) { Ok(()) } else { Err(why) }).map_err(unclear("make", &path))?;
        }
        self.here()?;
        let instances = self.root.join("instances");
        let made = fs::DirBuilder::new().mode(0o711).create(&instances);
        made.or_else(|why| if exists(&why) { Ok(()) } else { Err(why) }).map_err(unclear("make", &instances))?;
        self.here()
    }

    /// Whether the directory is there: a mount may be missing.
    ///
    /// # Errors
    /// [`RemoteError::CouldNotAsk`]: it is not, or is another runtime's.
    pub(crate) fn here(&self) -> Answer<()> {
        let (path, root) = (self.root.join("provider"), self.root.display());
        match read(&path)? {
            Some(found) if found.trim() == self.provider => Ok(()),
            Some(found) => Err(RemoteError::could_not_ask(format!(
                "{root} has the run directories of {}, and the plugin is configured for {}; give each schedd a `base` \
                    of its own",
                found.trim(),
                self.provider
            ))),
            None => Err(RemoteError::could_not_ask(format!("{root} has no run directories; is it mounted?"))),
        }
    }

    pub(crate) fn place(&self, key: &str) -> Place {
        Place { dir: self.root.join("instances").join(files::name(key)), user: self.user }
    }
}

/// Machine and start of the one run of an instance.
pub(crate) type Began = (String, SystemTime);

/// What the files of an instance say.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Files {
    pub(crate) claim: Option<Began>,
    pub(crate) exit: Option<Exit>,
    /// Something of it runs, on whatever node.
    pub(crate) alive: bool,
}

/// The result of an instance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Exit {
    pub(crate) code: i32,
    pub(crate) at: SystemTime,
    pub(crate) oom: bool,
    pub(crate) why: String,
}

/// Characters of what a task can have written into a file of ours.
const LONGEST: usize = 4096;

fn seconds(text: &str) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_secs(text.parse().ok()?))
}

fn exit(text: &str) -> Option<Exit> {
    let mut words = text.trim_end().splitn(4, ' ');
    let (code, at) = (words.next()?.parse().ok()?, seconds(words.next()?)?);
    Some(Exit {
        code,
        at,
        oom: words.next() == Some("oom"),
        why: files::short(words.next().unwrap_or_default(), LONGEST),
    })
}

/// One run directory.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    user: Option<Owner>,
}

impl Place {
    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What there is. A run takes the lock, then claims, leaves its result, and only then lets go of the lock: so in
    /// this order a claim without lock and result is one that has left none.
    ///
    /// A network file system may keep for a while that a file is missing: [`Place::files_for_sure`].
    pub(crate) fn files(&self) -> Answer<Files> {
        as_owner(&self.dir, || {
            let claim = read(&self.file("claim"))?.map(|text| {
                let mut words = text.split_whitespace().skip(2);
                let at = words.next().and_then(seconds).unwrap_or(UNIX_EPOCH);
                (files::short(words.next().unwrap_or("?"), LONGEST), at)
            });
            let alive = claim.is_some() && held(&self.file("alive"))?;
            Ok(Files { alive, claim, exit: read(&self.file("exit"))?.as_deref().and_then(exit) })
        })
    }

    /// As [`Place::files`], and what is missing is missing.
    pub(crate) fn files_for_sure(&self) -> Answer<Files> {
        if self.is_there()? {
            as_owner(&self.dir, || probe(&self.dir))?;
        }
        self.files()
    }

    fn is_there(&self) -> Answer<bool> {
        Ok(rights::owner(&self.dir).map_err(unclear("look at", &self.dir))?.is_some())
    }

    /// Keeps a result that the gate could not leave; the one that is there already counts, if it can be read.
    pub(crate) fn conclude(&self, exit: &Exit) -> Answer<()> {
        let at = exit.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let why: String = exit.why.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = format!("{} {at} {} {why}\n", exit.code, if exit.oom { "oom" } else { "-" });
        if !self.is_there()? {
            // Somebody has removed it: the queue alone tells.
            return Ok(());
        }
        as_owner(&self.dir, || {
            files::put_unless_there(&self.file("exit"), text.as_bytes(), |text| self::exit(text).is_some())
        })
    }

    /// Everything that a job needs, before it is submitted. Whatever there is of an earlier attempt is made anew: no
    /// job of the key has begun.
    pub(crate) fn lay_out(&self, request: &Ensure, options: &TaskOptions) -> Answer<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.dir).map_err(unclear("make", &self.dir))?;
        let owner = rights::owner(&self.dir).map_err(unclear("look at", &self.dir))?;
        if let (Some(user), Some(owner)) = (self.user, owner)
            && user != owner
        {
            if owner.uid != rustix::process::geteuid().as_raw() {
                return Err(RemoteError::could_not_ask(format!(
                    "{} belongs to the user {} and not to {}",
                    self.dir.display(),
                    owner.uid,
                    user.uid
                )));
            }
            // It is empty: files are made with the rights of its owner.
            lchown(&self.dir, Some(user.uid), Some(user.gid)).map_err(unclear(
                "give to the user of the jobs (it needs a file system without root_squash)",
                &self.dir,
            ))?;
        }
        as_owner(&self.dir, || match read(&self.file("claim"))? {
            // Another manager's job has begun meanwhile, and its files may have been renewed.
            Some(_) => Ok(()),
            None => self.write(request, options),
        })
    }

    fn write(&self, request: &Ensure, options: &TaskOptions) -> Answer<()> {
        files::lay_out(&self.dir, &request.bundle)?;
        let (task, alloc) = (self.file("task"), self.file("alloc"));
        let work_dir =
            options.work_dir.as_deref().filter(|dir| !dir.is_empty()).map_or(task.clone(), |dir| task.join(dir));
        if work_dir.starts_with(&task) {
            fs::create_dir_all(&work_dir).map_err(unclear("make", &work_dir))?;
        }
        let mut env: std::collections::BTreeMap<String, String> = request.task.env.clone().into_iter().collect();
        // The manager's paths of these directories do not exist there.
        for (name, dir) in [("TASK", task.join("local")), ("SECRETS", task.join("secrets")), ("ALLOC", alloc)] {
            env.insert(format!("NOMAD_{name}_DIR"), dir.display().to_string());
        }
        let command: Vec<&str> = std::iter::once(&options.command).chain(&options.args).map(String::as_str).collect();
        let own = script::task(&self.dir, &work_dir, &options.shell, "", &options.prolog, &command);
        put(&self.file("env"), 0o600, script::environment(&env).as_bytes())?;
        put(&self.file("task.sh"), 0o700, own.as_bytes())?;
        put(&self.file("gate.sh"), 0o700, script::gate(&self.dir, &GATE).as_bytes())
    }

    /// Tells the gate what a stop means.
    pub(crate) fn note_stop(&self, signal: &str, timeout: Duration) -> Answer<()> {
        let text = format!("{signal} {}\n", timeout.as_millis().div_ceil(1000));
        as_owner(&self.dir, || put(&self.file("stop"), 0o600, text.as_bytes()))
    }

    /// Removes the directory, unless something has begun there.
    pub(crate) fn discard(&self) -> Answer<()> {
        match self.files_for_sure()?.claim {
            Some(_) => Ok(()),
            None => self.remove(),
        }
    }

    /// Removes the directory. What is in it is its user's, and goes with the user's rights.
    pub(crate) fn remove(&self) -> Answer<()> {
        if !self.is_there()? {
            return Ok(());
        }
        as_owner(&self.dir, || {
            let _ = make_writable(&self.dir);
            for entry in fs::read_dir(&self.dir).map_err(unclear("list", &self.dir))? {
                let path = entry.map_err(unclear("list", &self.dir))?.path();
                remove(&path).map_err(unclear("remove", &path))?;
            }
            Ok(())
        })?;
        fs::remove_dir(&self.dir).map_err(unclear("remove", &self.dir))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_as_the_gate_and_the_driver_write_them() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let result = |code, seconds, oom, why: &str| Some(Exit { code, at: at(seconds), oom, why: why.to_owned() });
        assert_eq!(exit("3 100\n"), result(3, 100, false, ""));
        assert_eq!(exit("137 100 oom gone over its memory\n"), result(137, 100, true, "gone over its memory"));
        assert_eq!(exit("1 100 - it never began: oom\n"), result(1, 100, false, "it never began: oom"));
        for wrong in ["", "\n", "3", "x 100", "3 x", "3 -1"] {
            assert_eq!(exit(wrong), None, "{wrong:?}");
        }
    }

    fn place() -> (tempfile::TempDir, Place) {
        let dir = tempfile::tempdir().expect("a directory");
        let base = Base::new(dir.path(), "schedd", None);
        base.open().expect("opened");
        let place = base.place("a/K");
        fs::create_dir(&place.dir).expect("made");
        (dir, place)
    }

    #[test]
    fn the_first_result_stays() {
        let (_dir, place) = place();
        assert_eq!(place.files(), Ok(Files::default()));
        let first = Exit { code: 137, at: UNIX_EPOCH + Duration::from_secs(5), oom: true, why: "too\n much".into() };
        place.conclude(&first).expect("kept");
        let kept = Exit { why: "too much".into(), ..first.clone() };
        assert_eq!(place.files().expect("read").exit, Some(kept.clone()));
        place.conclude(&Exit { code: 1, oom: false, ..first.clone() }).expect("no error");
        assert_eq!(place.files().expect("read").exit, Some(kept));
        // That of the gate as well.
        fs::write(place.file("exit"), "0 100\n").expect("written");
        place.conclude(&first).expect("no error");
        assert_eq!(place.files().expect("read").exit.map(|exit| exit.code), Some(0));
        let names = fs::read_dir(&place.dir).expect("listed").flatten().map(|entry| entry.file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["exit"], "and nothing else is left");
    }

    #[test]
    fn a_claim_tells_node_and_time_and_its_lock_what_lives() {
        let (_dir, place) = place();
        fs::write(place.file("claim"), "1.0.x job 100 n1 1\n").expect("written");
        let claim = Some(("n1".to_owned(), UNIX_EPOCH + Duration::from_secs(100)));
        assert_eq!(place.files(), Ok(Files { claim: claim.clone(), exit: None, alive: false }));
        let lock = fs::File::create(place.file("alive")).expect("made");
        lock.lock_shared().expect("locked");
        assert_eq!(place.files(), Ok(Files { claim, exit: None, alive: true }));
        place.remove().expect("removed");
        place.remove().expect("and again");
        assert!(!place.dir.exists());
    }

    #[test]
    fn a_base_is_of_one_schedd() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = |provider: &str| Base::new(dir.path(), provider, None);
        assert!(base("one").here().is_err(), "it may not be mounted");
        base("one").open().expect("made");
        base("one").open().expect("there");
        for other in [base("two").open(), base("two").here()] {
            assert!(matches!(&other, Err(RemoteError::CouldNotAsk(why)) if why.contains("one")), "{other:?}");
        }
        assert_ne!(base("one").place("K").dir, base("one").place("k").dir);
    }
}
