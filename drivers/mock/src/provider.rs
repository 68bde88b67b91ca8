//! A provider that is a directory: any number of drivers, in any number of processes, see the same instances in it.
//!
//! ```text
//! <dir>/provider-id            identity, made once
//! <dir>/lock                   held while an instance is read and changed
//! <dir>/faults.json            what goes wrong now, for whoever tests; faults-<caller>.json: for one caller
//! <dir>/credentials            who may call, one a line; without it everybody may
//! <dir>/instances/<id>.json    one instance: who, since when, what it was asked to be, how it was stopped
//! <dir>/files/<id>/            the files that came with it, as they are now
//! <dir>/sealed/<key>           nothing is created with this key any more
//! <dir>/calls.jsonl            every call, when that is asked for (`crate::fake`)
//! <dir>/past.jsonl             when instances that are forgotten by now lived
//! <dir>/rate                   calls of the present second
//! ```
//! The id of an instance is its key, unless the provider does not create by key: then a second one with the same key is
//! `<key>~1`. Instances do nothing: how one is follows from its record and the time.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use driver_sdk::{BundleFile, DriverConfig, InstanceState, LogStream, Observation, RemoteError, TaskExit};
use serde::{Deserialize, Serialize};

use crate::options::{Faults, RemoteTaskOptions};

const SIGKILL: i32 = 9;

/// One instance.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) owner: String,
    pub(crate) slot: String,
    pub(crate) epoch: u64,
    /// Milliseconds since 1970.
    pub(crate) created_ms: u64,
    /// The task's configuration as it came.
    pub(crate) config: Vec<u8>,
    pub(crate) stop: Option<Stop>,
    pub(crate) signals: Vec<String>,
    /// What the host kept of the create; empty when it was not asked to.
    #[serde(default)]
    pub(crate) intent: Vec<u8>,
}

/// File of [`Past`]s.
pub(crate) const PAST: &str = "past.jsonl";
/// Directory of the files of instances.
pub(crate) const FILES: &str = "files";
/// File of [`crate::fake::RecordedCall`]s.
pub(crate) const CALLS: &str = "calls.jsonl";

/// When an instance lived that is forgotten by now.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub(crate) struct Past {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) slot: String,
    pub(crate) created_ms: u64,
    pub(crate) ended_ms: u64,
}

/// A stop order that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
pub(crate) struct Stop {
    /// When it dies of it, in milliseconds since 1970.
    pub(crate) at_ms: u64,
    /// It did not want to.
    pub(crate) killed: bool,
}

pub(crate) fn millis(at: SystemTime) -> u64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis().try_into().unwrap_or(u64::MAX)
}

fn time(millis: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(millis))
}

fn span(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

/// What an instance prints on one of its streams.
struct Printed<'a> {
    text: &'a str,
    repeat: u64,
    pause: Duration,
}

fn printed(options: &RemoteTaskOptions, stream: LogStream) -> Printed<'_> {
    let (text, repeat, pause) = match stream {
        LogStream::Stderr => (&options.stderr_string, options.stderr_repeat, options.stderr_repeat_duration),
        LogStream::Stdout => (&options.stdout_string, options.stdout_repeat, options.stdout_repeat_duration),
    };
    Printed { text, repeat, pause }
}

impl Record {
    pub(crate) fn options(&self) -> Result<RemoteTaskOptions, RemoteError> {
        RemoteTaskOptions::decode(&self.config)
            .map_err(|error| RemoteError::could_not_ask(format!("the record of {:?} is damaged: {error}", self.key)))
    }

    /// When it was accepted and when it ends.
    pub(crate) fn life(&self) -> Result<(u64, u64), RemoteError> {
        Ok((self.created_ms, self.times(&self.options()?).1))
    }

    /// When it runs and when it ends.
    fn times(&self, options: &RemoteTaskOptions) -> (u64, u64) {
        let runs = self.created_ms.saturating_add(span(options.start_block_for));
        let natural = runs.saturating_add(span(options.run_for));
        (runs, self.stop.map_or(natural, |stop| natural.min(stop.at_ms)))
    }

    /// How it is at a time.
    pub(crate) fn at(&self, now_ms: u64) -> Result<Observation, RemoteError> {
        let options = self.options()?;
        let (runs, ends) = self.times(&options);
        let ended = now_ms >= ends;
        let state = match (ended, now_ms >= runs) {
            (true, _) => InstanceState::Exited,
            (false, true) => InstanceState::Running,
            (false, false) => InstanceState::Creating,
        };
        let killed = self.stop.is_some_and(|stop| stop.killed && stop.at_ms <= ends);
        let exit = match (killed, options.exit_signal) {
            (true, _) => TaskExit::signal(SIGKILL),
            (false, 0) => TaskExit::code(options.exit_code),
            (false, signal) => TaskExit::signal(signal),
        };
        Ok(Observation {
            key: self.key.clone(),
            state,
            exit: if ended {
                TaskExit { oom_killed: options.exit_oom && !killed, ..exit }
            } else {
                TaskExit::default()
            },
            reason: if ended { options.exit_err_msg.clone() } else { String::new() },
            started_at: (now_ms >= runs).then(|| time(runs)).flatten(),
            finished_at: ended.then(|| time(ends)).flatten(),
            provider_id: format!("mock/{}", self.id),
            address: options.driver_ip,
            attributes: [("signals".to_owned(), self.signals.join(","))].into(),
            epoch: self.epoch,
            ..Observation::default()
        })
    }

    /// How much there is of a log at a time, and whether more may come.
    fn output(&self, options: &RemoteTaskOptions, log: &Printed<'_>, now_ms: u64) -> (u64, bool) {
        let (runs, ends) = self.times(options);
        let size = log.text.len() as u64;
        if size == 0 || now_ms < runs {
            return (0, size > 0 && now_ms < ends);
        }
        let ran = now_ms.min(ends).saturating_sub(runs);
        let times = match span(log.pause) {
            0 => log.repeat,
            pause => (ran / pause).min(log.repeat),
        };
        (size.saturating_mul(times.saturating_add(1)), now_ms < ends && times < log.repeat)
    }

    /// Length of one of its logs.
    pub(crate) fn log_length(&self, stream: LogStream, now_ms: u64) -> Result<u64, RemoteError> {
        let options = self.options()?;
        Ok(self.output(&options, &printed(&options, stream), now_ms).0)
    }

    /// One of its logs from an offset on, and whether more may come.
    pub(crate) fn log(
        &self,
        stream: LogStream,
        now_ms: u64,
        offset: u64,
        max: usize,
    ) -> Result<(Vec<u8>, bool), RemoteError> {
        let options = self.options()?;
        let log = printed(&options, stream);
        let (length, grows) = self.output(&options, &log, now_ms);
        let text = log.text.as_bytes();
        let wanted = length.saturating_sub(offset).min(max as u64) as usize;
        let first = offset.checked_rem(text.len() as u64).unwrap_or(0) as usize;
        let data = text.iter().copied().cycle().skip(first).take(wanted).collect();
        Ok((data, grows || offset.saturating_add(wanted as u64) < length))
    }
}

/// The directory.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    dir: PathBuf,
}

fn trouble(what: &str, path: &Path) -> impl FnOnce(io::Error) -> RemoteError {
    let text = format!("cannot {what} {path:?}");
    move |error| RemoteError::could_not_ask(format!("{text}: {error}"))
}

/// Held while instances are looked at and changed.
pub(crate) struct Locked<'a> {
    provider: &'a Provider,
    _lock: File,
}

impl Provider {
    /// Opens or makes it; its identity is the second value.
    pub(crate) fn open(dir: &Path) -> Result<(Self, String), RemoteError> {
        for part in ["instances", "sealed"] {
            let dir = dir.join(part);
            fs::create_dir_all(&dir).map_err(trouble("make the directory", &dir))?;
        }
        let provider = Self { dir: dir.to_owned() };
        let locked = provider.lock()?;
        let file = dir.join("provider-id");
        let id = match fs::read_to_string(&file) {
            Ok(id) => id.trim().to_owned(),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let id = format!("mock-{:x}-{:x}", millis(SystemTime::now()), std::process::id());
                write(&file, id.as_bytes())?;
                id
            }
            Err(error) => return Err(trouble("read", &file)(error)),
        };
        drop(locked);
        Ok((provider, id))
    }

    /// What goes wrong now for a caller, beside what the operator has asked for.
    pub(crate) fn faults(&self, caller: &str) -> Result<Faults, RemoteError> {
        let own = if caller.is_empty() { Faults::default() } else { self.faults_in(&format!("faults-{caller}.json"))? };
        Ok(self.faults_in("faults.json")?.and(own))
    }

    fn faults_in(&self, name: &str) -> Result<Faults, RemoteError> {
        let file = self.dir.join(name);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Faults::default()),
            Err(error) => return Err(trouble("read", &file)(error)),
        };
        let wrong = |error: String| RemoteError::could_not_ask(format!("{file:?} is not right: {error}"));
        let json: serde_json::Value = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let packed = rmp_serde::to_vec_named(&json).map_err(|error| wrong(error.to_string()))?;
        let faults = Faults::decode(packed).map_err(|error| wrong(error.to_string()))?;
        faults.validate().map_err(|error| wrong(error.to_string()))?;
        Ok(faults)
    }

    /// Does it take these credentials now?
    pub(crate) fn admits(&self, credentials: &str) -> Result<bool, RemoteError> {
        let file = self.dir.join("credentials");
        match fs::read_to_string(&file) {
            Ok(text) => Ok(text.lines().any(|line| line.trim() == credentials)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            Err(error) => Err(trouble("read", &file)(error)),
        }
    }

    /// Appends a line to a file of records. One write: lines of several processes never mix.
    pub(crate) fn note(&self, name: &str, line: &impl Serialize) -> Result<(), RemoteError> {
        let path = self.dir.join(name);
        let mut text = serde_json::to_vec(line).map_err(RemoteError::could_not_ask)?;
        text.push(b'\n');
        let append = || File::options().create(true).append(true).open(&path)?.write_all(&text);
        append().map_err(trouble("append to", &path))
    }

    /// Takes a call in: when, in milliseconds since 1970, and whether it is within the rate, which counts the calls of
    /// all callers in each second of the clock; 0 = no rate.
    pub(crate) fn take_in(&self, per_second: u64) -> Result<(u64, bool), RemoteError> {
        if per_second == 0 {
            return Ok((millis(SystemTime::now()), true));
        }
        let _turn = self.lock()?;
        // Read in turn: whoever waited counts in the second in which it is its turn.
        let now_ms = millis(SystemTime::now());
        let path = self.dir.join("rate");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(trouble("read", &path)(error)),
        };
        let second = now_ms / 1000;
        let used = text
            .split_once(' ')
            .filter(|(s, _)| *s == second.to_string())
            .and_then(|(_, n)| n.parse().ok())
            .unwrap_or(0_u64);
        if used >= per_second {
            return Ok((now_ms, false));
        }
        write(&path, format!("{second} {}", used + 1).as_bytes())?;
        Ok((now_ms, true))
    }

    /// Waits for its turn.
    pub(crate) fn lock(&self) -> Result<Locked<'_>, RemoteError> {
        let path = self.dir.join("lock");
        let open = || {
            let file = File::options().create(true).write(true).truncate(false).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        Ok(Locked { provider: self, _lock: open().map_err(trouble("lock", &path))? })
    }
}

fn write(path: &Path, data: &[u8]) -> Result<(), RemoteError> {
    let new = path.with_extension("new");
    let replace = || {
        fs::write(&new, data)?;
        fs::rename(&new, path)
    };
    replace().map_err(trouble("write", path))
}

impl Locked<'_> {
    fn path(&self, id: &str) -> PathBuf {
        self.provider.dir.join("instances").join(format!("{id}.json"))
    }

    fn seal_path(&self, key: &str) -> PathBuf {
        self.provider.dir.join("sealed").join(key)
    }

    pub(crate) fn get(&self, id: &str) -> Result<Option<Record>, RemoteError> {
        let path = self.path(id);
        match fs::read(&path) {
            Ok(text) => {
                let damaged = |error| RemoteError::could_not_ask(format!("the record {path:?} is damaged: {error}"));
                serde_json::from_slice(&text).map(Some).map_err(damaged)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(trouble("read", &path)(error)),
        }
    }

    /// The first instance with a key.
    pub(crate) fn by_key(&self, key: &str, keyed: bool) -> Result<Option<Record>, RemoteError> {
        // With keys there is at most one, and it has the key's name: no need to look through thousands.
        let first = self.get(key)?;
        if first.is_some() || keyed {
            return Ok(first);
        }
        let again = format!("{key}~");
        self.ids()?.iter().find(|id| id.starts_with(&again)).map_or(Ok(None), |id| self.get(id))
    }

    /// An id for one more instance with a key.
    pub(crate) fn another_id(&self, key: &str) -> Result<String, RemoteError> {
        if !self.path(key).exists() {
            return Ok(key.to_owned());
        }
        let ids = self.ids()?;
        let candidates = std::iter::once(key.to_owned()).chain((1..).map(|n: u32| format!("{key}~{n}")));
        Ok(candidates.into_iter().find(|id| !ids.contains(id)).unwrap_or_default())
    }

    pub(crate) fn put(&self, record: &Record) -> Result<(), RemoteError> {
        let text = serde_json::to_vec_pretty(record).map_err(RemoteError::could_not_ask)?;
        write(&self.path(&record.id), &text)
    }

    /// Puts files into the directory of an instance, each whole: who reads sees the old one or the new one.
    pub(crate) fn deliver(&self, id: &str, files: &[BundleFile]) -> Result<(), RemoteError> {
        let root = self.provider.dir.join(FILES).join(id);
        // All are looked at before any is written.
        for BundleFile { path, .. } in files {
            let plain = !path.is_empty() && Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
            if !plain {
                return Err(RemoteError::wrong_request(format!(
                    "the bundle holds {path:?}, which is not a plain relative path"
                )));
            }
        }
        for BundleFile { path, mode, data } in files {
            let path = root.join(path);
            let new = root.with_extension("new");
            let place = || {
                if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                    fs::create_dir_all(&path)?;
                    return fs::set_permissions(&path, fs::Permissions::from_mode(*mode));
                }
                path.parent().map_or(Ok(()), fs::create_dir_all)?;
                fs::write(&new, data)?;
                fs::set_permissions(&new, fs::Permissions::from_mode(*mode))?;
                fs::rename(&new, &path)
            };
            place().map_err(trouble("write", &path))?;
        }
        Ok(())
    }

    /// Forgets an instance; when it lived is kept.
    pub(crate) fn remove(&self, record: &Record) -> Result<(), RemoteError> {
        let (created_ms, ended_ms) = record.life()?;
        let past =
            Past { id: record.id.clone(), key: record.key.clone(), slot: record.slot.clone(), created_ms, ended_ms };
        self.provider.note(PAST, &past)?;
        let files = self.provider.dir.join(FILES).join(&record.id);
        match fs::remove_dir_all(&files) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(trouble("remove", &files)(error)),
            _ => {}
        }
        let path = self.path(&record.id);
        fs::remove_file(&path).map_err(trouble("remove", &path))
    }

    pub(crate) fn is_sealed(&self, key: &str) -> bool {
        self.seal_path(key).exists()
    }

    pub(crate) fn seal(&self, key: &str) -> Result<(), RemoteError> {
        let path = self.seal_path(key);
        fs::write(&path, "").map_err(trouble("write", &path))
    }

    /// Ids of all instances, in order.
    pub(crate) fn ids(&self) -> Result<Vec<String>, RemoteError> {
        let dir = self.provider.dir.join("instances");
        let entries = fs::read_dir(&dir).map_err(trouble("list", &dir))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut ids: Vec<String> = names.filter_map(|name| name.strip_suffix(".json").map(str::to_owned)).collect();
        ids.sort();
        Ok(ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(options: &[(&str, serde_json::Value)]) -> Record {
        let map: serde_json::Map<_, _> =
            options.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        Record {
            id: "k".into(),
            key: "k".into(),
            owner: "o".into(),
            slot: "s".into(),
            epoch: 1,
            created_ms: 1000,
            config: rmp_serde::to_vec_named(&map).expect("packs"),
            stop: None,
            signals: Vec::new(),
            intent: Vec::new(),
        }
    }

    #[test]
    fn how_an_instance_is_follows_from_its_record_and_the_time() {
        let mut record =
            record(&[("start_block_for", "1s".into()), ("run_for", "10s".into()), ("exit_code", 3.into())]);
        let state = |record: &Record, now| record.at(now).expect("fits").state;
        assert_eq!(state(&record, 1500), InstanceState::Creating);
        assert_eq!(state(&record, 2000), InstanceState::Running);
        let ended = record.at(99_000).expect("fits");
        assert_eq!((ended.state, ended.exit.exit_code, ended.finished_at), (InstanceState::Exited, 3, time(12_000)));
        record.stop = Some(Stop { at_ms: 5000, killed: true });
        assert_eq!(state(&record, 4999), InstanceState::Running);
        assert_eq!(record.at(5000).expect("fits").exit, TaskExit::signal(9));
        record.stop = Some(Stop { at_ms: 50_000, killed: true });
        assert_eq!(record.at(60_000).expect("fits").exit.exit_code, 3, "it had ended before");
    }

    #[test]
    fn output_grows_with_time_and_is_the_same_for_every_reader() {
        let record = record(&[
            ("run_for", "10s".into()),
            ("stdout_string", "abc".into()),
            ("stdout_repeat", 3.into()),
            ("stdout_repeat_duration", "2s".into()),
            ("stderr_string", "oops".into()),
        ]);
        let read = |now, offset| record.log(LogStream::Stdout, now, offset, 100).expect("fits");
        assert_eq!(read(1000, 0), (b"abc".to_vec(), true));
        assert_eq!(read(3000, 0), (b"abcabc".to_vec(), true));
        assert_eq!(read(3000, 4), (b"bc".to_vec(), true));
        assert_eq!(read(99_000, 10), (b"bc".to_vec(), false));
        assert_eq!(read(99_000, 99), (Vec::new(), false));
        assert_eq!(record.log(LogStream::Stdout, 99_000, 0, 4).expect("fits"), (b"abca".to_vec(), true));
        assert_eq!(record.log(LogStream::Stderr, 1000, 1, 100).expect("fits"), (b"ops".to_vec(), false));
    }
}
