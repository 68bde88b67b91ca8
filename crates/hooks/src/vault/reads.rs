//! Reads one secret of a task, again and again: when it is due, when its lease nears its end, when the task has another
//! token.

use std::time::Duration;

use host::clock::now_ns;
use template::{SecretData, SecretQuery};
use tokio::{sync::watch, time::Instant};
use vault::{
    Caller, Error, Mount, Reading, Vault,
    lease::{self, Asked, Next},
};

use super::sessions::{Reader, Vaults};

/// Pauses after a read that failed, or found nothing: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// What is read.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Secret(SecretQuery),
    /// The names below a path.
    Names(String),
}

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// None = there is no such secret.
    Secret(Option<SecretData>),
    Names(Vec<String>),
}

/// Follows one secret.
pub(crate) struct SecretReader {
    vault: Option<Vault>,
    unread: Duration,
    session: watch::Receiver<Option<Caller>>,
    wanted: Wanted,
    spread: u64,
    /// Where the path is mounted, once it is known.
    mount: Option<Option<Mount>>,
    /// A secret whose lease is kept.
    kept: Option<Reading>,
    /// When there is something to do; None = only with another token.
    due: Option<Instant>,
    pause: Duration,
}

impl SecretReader {
    /// `spread` is any number: secrets that were read together are not read together again.
    pub(crate) fn new(vaults: &Vaults, reader: &Reader, wanted: Wanted, spread: u64) -> Self {
        Self {
            vault: vaults.vault().cloned(),
            unread: vaults.unread(),
            session: vaults.of(reader),
            wanted,
            spread,
            mount: None,
            kept: None,
            due: Some(Instant::now()),
            pause: PAUSES.0,
        }
    }

    /// The next news of it, when there are any. The error is for people and leaves the last answer as it is. Cancel
    /// safe, but for a secret that is being made: it lasts until its lease ends.
    pub(crate) async fn next(&mut self) -> Result<Read, String> {
        let Some(vault) = self.vault.clone() else {
            std::future::pending::<()>().await;
            return Err(String::new());
        };
        loop {
            self.wait().await;
            let Some(caller) = self.session.borrow_and_update().clone() else {
                self.due = None;
                return Err("the task has no token of Vault yet".to_owned());
            };
            if let Some(kept) = &self.kept
                && !kept.lease_id.is_empty()
                && kept.renewable
            {
                match vault.renew_lease(&caller, &kept.lease_id).await {
                    Ok((lease, renewable)) => {
                        self.keep(lease, renewable);
                        continue;
                    }
                    // Another one takes its place.
                    Err(error) if error.decided() => self.kept = None,
                    Err(error) => {
                        self.later();
                        return Err(format!("the lease of a secret is not renewed: {error}"));
                    }
                }
            }
            return match self.read(&vault, &caller).await {
                Ok(read) => Ok(read),
                Err(error) => {
                    self.later();
                    Err(format!("secrets cannot be read: {error}"))
                }
            };
        }
    }

    /// Until something is due, or the task has another token, whose leases are not those of the former.
    async fn wait(&mut self) {
        let due = self.due;
        let timer = async {
            match due {
                Some(due) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // Without a session the task is over, and nobody follows.
            changed = self.session.changed() => match changed {
                Ok(()) => (self.kept, self.mount) = (None, None),
                Err(_) => std::future::pending().await,
            },
            () = timer => {}
        }
    }

    async fn read(&mut self, vault: &Vault, caller: &Caller) -> Result<Read, Error> {
        let (path, data) = match &self.wanted {
            Wanted::Secret(query) => (&query.path, Some(&query.data)),
            Wanted::Names(path) => (path, None),
        };
        if self.mount.is_none() {
            self.mount = Some(vault.mount(caller, path).await?);
        }
        let mount = self.mount.as_ref().and_then(Option::as_ref);
        let Some(data) = data else {
            let mut names = vault.list(caller, path, mount).await?;
            names.sort_unstable();
            self.after(self.unread);
            return Ok(Read::Names(names));
        };
        let written = !data.is_empty();
        let reading = match written {
            true => vault.write(caller, path, serde_json::json!(data)).await?,
            false => vault.read(caller, path, mount).await?,
        };
        let Some(reading) = reading else {
            self.kept = None;
            self.later();
            return Ok(Read::Secret(None));
        };
        self.pause = PAUSES.0;
        let found = SecretData {
            lease_id: reading.lease_id.clone(),
            lease_seconds: reading.lease.as_secs(),
            renewable: reading.renewable,
            data: reading.data.clone(),
            warnings: reading.warnings.clone(),
        };
        self.schedule(&reading, written);
        // Only its lease is needed from now on.
        self.kept = Some(Reading { data: serde_json::Map::new(), ..reading });
        Ok(Read::Secret(Some(found)))
    }

    /// After a renewal.
    fn keep(&mut self, lease: Duration, renewable: bool) {
        let Some(mut kept) = self.kept.take() else { return };
        // A lease that shrinks nears its greatest age: what is left of it is used, and then it is read anew.
        kept.renewable = renewable && lease.saturating_mul(2) >= kept.lease;
        let reading = Reading { lease, ..kept.clone() };
        self.pause = PAUSES.0;
        self.schedule(&reading, false);
        self.kept = Some(kept);
    }

    fn schedule(&mut self, reading: &Reading, written: bool) {
        let asked = Asked { written, most: self.unread, now_ns: now_ns() };
        match lease::next(reading, asked, self.spread) {
            Next::RenewIn(time) | Next::ReadIn(time) => self.after(time),
            Next::Keep => self.due = None,
        }
    }

    fn after(&mut self, time: Duration) {
        self.due = Some(Instant::now() + time);
    }

    fn later(&mut self) {
        self.after(self.pause);
        self.pause = (self.pause * 2).min(PAUSES.1);
    }
}
