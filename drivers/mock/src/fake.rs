//! The remote mock's provider as a test sees it: what was called by whom under which epoch, what lives, what lived, and
//! what is to go wrong.
//!
//! Any number of processes share one provider; this looks at the same files.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use driver_sdk::{InstanceState, RemoteError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::provider::{CALLS, PAST, Past, Provider, Record, millis};

/// A call as the provider saw it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct RecordedCall {
    /// When the provider took it in, in milliseconds since 1970.
    pub at_ms: u64,
    /// Who: the plugin's option `caller`, or its process id.
    pub caller: String,
    /// Which: ensure, find, list, observe, stop, seal, acknowledge, logs, signal, refresh.
    pub call: String,
    /// About which instances (by key, where the call is by key).
    pub instances: Vec<String>,
    /// Under which epoch; 0 for calls that only look.
    pub epoch: u64,
    /// What the provider made of it.
    pub outcome: Outcome,
}

impl RecordedCall {
    /// It could have changed something.
    #[must_use]
    pub fn mutates(&self) -> bool {
        ["ensure", "stop", "seal", "acknowledge", "signal", "refresh"].contains(&self.call.as_str())
    }
}

/// What the provider made of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It took effect.
    Done,
    /// There is no such instance.
    Gone,
    /// The request was wrong.
    Wrong,
    /// A newer epoch was accepted before.
    Stale,
    /// The key is sealed.
    Sealed,
    /// Too many calls.
    Throttled,
    /// Not with these credentials.
    Denied,
    /// The provider itself has failed.
    Failed,
    /// It has come and is held; what becomes of it follows.
    Held,
}

impl Outcome {
    pub(crate) fn of<T>(answer: &Result<T, RemoteError>) -> Self {
        match answer {
            Ok(_) => Self::Done,
            Err(RemoteError::Gone(_)) => Self::Gone,
            Err(RemoteError::WrongRequest(_)) => Self::Wrong,
            Err(RemoteError::StaleEpoch { .. }) => Self::Stale,
            Err(RemoteError::Sealed(_)) => Self::Sealed,
            Err(RemoteError::CouldNotAsk(_)) => Self::Failed,
        }
    }
}

/// An instance, living or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// Its own name.
    pub id: String,
    /// The key that it was created with.
    pub key: String,
    /// The slot that it was created for.
    pub slot: String,
    /// When it was accepted, in milliseconds since 1970.
    pub created_ms: u64,
    /// When it ended or will end.
    pub ended_ms: u64,
    /// The provider still knows it.
    pub known: bool,
    /// Signals that it was sent.
    pub signals: Vec<String>,
}

impl Instance {
    /// Did it live at that time?
    #[must_use]
    pub fn alive(&self, at_ms: u64) -> bool {
        (self.created_ms..self.ended_ms).contains(&at_ms)
    }
}

/// The provider of a directory.
#[derive(Debug, Clone)]
pub struct FakeProvider {
    dir: PathBuf,
    provider: Provider,
}

/// Why the provider's files could not be used.
#[derive(Debug, thiserror::Error)]
#[error("the fake provider in {dir:?}: {why}")]
pub struct FakeError {
    dir: PathBuf,
    why: String,
}

impl FakeProvider {
    /// Opens or makes it.
    ///
    /// # Errors
    /// When the directory cannot be used.
    pub fn open(dir: &Path) -> Result<Self, FakeError> {
        let (provider, _) = Provider::open(dir).map_err(|e| FakeError { dir: dir.to_owned(), why: e.to_string() })?;
        Ok(Self { dir: dir.to_owned(), provider })
    }

    fn failed(&self, why: impl ToString) -> FakeError {
        FakeError { dir: self.dir.clone(), why: why.to_string() }
    }

    fn lines<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>, FakeError> {
        let text = match fs::read_to_string(self.dir.join(name)) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(self.failed(format!("{name}: {e}"))),
        };
        // A reader may see the first half of a write that crosses a page: a line without its end is not written yet.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole
            .lines()
            .map(|line| serde_json::from_str(line).map_err(|e| self.failed(format!("{name}: {e}: {line}"))))
            .collect()
    }

    /// All recorded calls, in their order.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn calls(&self) -> Result<Vec<RecordedCall>, FakeError> {
        self.lines(CALLS)
    }

    /// How often a call took effect.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn count(&self, call: &str) -> Result<usize, FakeError> {
        Ok(self.calls()?.iter().filter(|c| c.call == call && c.outcome == Outcome::Done).count())
    }

    /// All instances that there ever were, by id.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn instances(&self) -> Result<Vec<Instance>, FakeError> {
        // Under the lock an instance is either here or in the past.
        let locked = self.provider.lock().map_err(|e| self.failed(e))?;
        let mut all: Vec<Instance> = self
            .lines::<Past>(PAST)?
            .into_iter()
            .map(|Past { id, key, slot, created_ms, ended_ms }| Instance {
                id,
                key,
                slot,
                created_ms,
                ended_ms,
                known: false,
                signals: Vec::new(),
            })
            .collect();
        for id in locked.ids().map_err(|e| self.failed(e))? {
            let Some(record) = locked.get(&id).map_err(|e| self.failed(e))? else { continue };
            let (created_ms, ended_ms) = record.life().map_err(|e| self.failed(e))?;
            let Record { id, key, slot, signals, .. } = record;
            all.push(Instance { id, key, slot, created_ms, ended_ms, known: true, signals });
        }
        all.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(all)
    }

    /// The instances that live now.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn live(&self) -> Result<Vec<Instance>, FakeError> {
        let now = millis(SystemTime::now());
        Ok(self.instances()?.into_iter().filter(|i| i.alive(now)).collect())
    }

    /// The most instances of each slot that have lived at the same time: 1 everywhere is I1.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn most_live(&self) -> Result<BTreeMap<String, usize>, FakeError> {
        let mut by_slot: BTreeMap<String, Vec<Instance>> = BTreeMap::new();
        for instance in self.instances()? {
            by_slot.entry(instance.slot.clone()).or_default().push(instance);
        }
        // The number only grows when one begins.
        let most =
            |of: &[Instance]| of.iter().map(|i| of.iter().filter(|o| o.alive(i.created_ms)).count()).max().unwrap_or(0);
        Ok(by_slot.into_iter().map(|(slot, of)| (slot, most(&of))).collect())
    }

    /// How an instance is seen, by id; None when the provider does not know it.
    ///
    /// # Errors
    /// When the files cannot be read.
    pub fn state(&self, id: &str) -> Result<Option<InstanceState>, FakeError> {
        let locked = self.provider.lock().map_err(|e| self.failed(e))?;
        let record = locked.get(id).map_err(|e| self.failed(e))?;
        record.map(|r| Ok(r.at(millis(SystemTime::now())).map_err(|e| self.failed(e))?.state)).transpose()
    }

    /// A file of an instance's directory as it is now; None when there is none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn file(&self, id: &str, path: &str) -> Result<Option<Vec<u8>>, FakeError> {
        match fs::read(self.dir.join(crate::provider::FILES).join(id).join(path)) {
            Ok(data) => Ok(Some(data)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    /// Ends an instance now, as if by itself.
    ///
    /// # Errors
    /// When the files cannot be read or written.
    pub fn end(&self, id: &str) -> Result<(), FakeError> {
        let locked = self.provider.lock().map_err(|e| self.failed(e))?;
        let Some(mut record) = locked.get(id).map_err(|e| self.failed(e))? else {
            return Err(self.failed(format!("there is no instance {id:?}")));
        };
        record.stop = Some(crate::provider::Stop { at_ms: millis(SystemTime::now()), killed: false });
        locked.put(&record).map_err(|e| self.failed(e))
    }

    /// Takes calls with these credentials only from now on.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn admit(&self, credentials: &str) -> Result<(), FakeError> {
        self.replace("credentials", credentials)
    }

    fn replace(&self, name: &str, text: &str) -> Result<(), FakeError> {
        let new = self.dir.join(format!("{name}.new"));
        // As whole as any reader may expect.
        fs::write(&new, text).and_then(|()| fs::rename(&new, self.dir.join(name))).map_err(|e| self.failed(e))
    }

    /// What goes wrong from now on (keys as of the plugin's `faults` block), for everybody or for one caller.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn fault(&self, caller: Option<&str>, faults: &serde_json::Value) -> Result<(), FakeError> {
        let name = caller.map_or_else(|| "faults.json".to_owned(), |caller| format!("faults-{caller}.json"));
        self.replace(&name, &faults.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_being_written_is_not_read_yet() {
        let dir = tempfile::tempdir().expect("a directory");
        let provider = FakeProvider::open(dir.path()).expect("opens");
        fs::write(dir.path().join("some.jsonl"), "{\"n\":1}\n{\"n\"").expect("writes");
        let read: Vec<serde_json::Value> = provider.lines("some.jsonl").expect("reads");
        assert_eq!(read, [serde_json::json!({"n": 1})]);
        assert!(provider.lines::<serde_json::Value>("none.jsonl").expect("reads").is_empty());
    }
}
