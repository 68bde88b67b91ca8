//! Tokens of Vault for tasks: the node logs in with the task's identity, gives the task its token, renews it, and
//! revokes it when the task is over.
//!
//! ```text
//! start ── identity signed ── login ── remember ── write ── driver
//! running ─ half of the lease is over ─ renew, or log in again ─ write ─ restart | signal ─ remember
//! over ── revoke
//! ```
//!
//! Vault that is away ends no task: one that runs goes on, one that starts waits and says why.

mod reads;
mod record;
mod sessions;

use std::{path::Path, sync::Arc, time::Duration};

use host::{clock::now_ns, dirs::Keeper, seeds::Seeds};
use lifecycle::alloc::{
    events,
    machine::{Event, StartFailure},
};
use model::{Secret, Task, identity_rules::change_mode, task::Vault as Block, vault_rules::IDENTITY};
use vault::{Vault, lease::Due};

use self::record::Held;
pub use self::sessions::Vaults;
pub(crate) use self::{
    reads::{Read, SecretReader, Wanted},
    record::token,
    sessions::Reader,
};
use crate::{
    cluster_watch::ClusterWatches,
    drivers::Drivers,
    files::{Look, Root},
    hook::{Given, Hook, Prepared, Starting},
    place::TaskPlace,
    task_config,
    tokens::{TokenError, Tokens},
};

/// The task's file with its token, below its directory.
const FILE: &str = "secrets/vault_token";
/// The task's variable with its token.
pub(crate) const VARIABLE: &str = "VAULT_TOKEN";
/// How long a token may be missing before an event tells people.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Pauses between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest time between two looks at the clock: somebody may set it, and a machine may sleep.
const LOOK: Duration = Duration::from_secs(30);
/// How long the end of a task waits for the revocation of its token. Without it, the token ends with its lease.
const FAREWELL: Duration = Duration::from_secs(8);

/// Why there is no token.
enum Trouble {
    /// There will be none.
    Never(String),
    /// Another attempt may get one.
    Later(String),
}

/// Gives tasks their tokens of Vault.
pub struct VaultTokens {
    /// Vault, and where readers of secrets find the tokens.
    pub vaults: Vaults,
    /// Requests tokens of identities from the servers.
    pub tokens: Tokens,
    /// Send a task the signal that tells of a new token.
    pub drivers: Arc<Drivers>,
    /// Reads secrets for templates.
    pub watches: ClusterWatches,
    /// Spread the renewals.
    pub seeds: Seeds,
}

impl Hook for VaultTokens {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a> {
        Box::pin(async {
            let Some(block) = &starting.spec.task.vault else { return Ok(()) };
            let held = self.obtain(starting, block).await?;
            if block.env != Some(false) {
                given.env.insert(VARIABLE.to_owned(), held.token.reveal().to_owned());
                if !held.namespace.is_empty() {
                    given.env.insert("VAULT_NAMESPACE".to_owned(), held.namespace.clone());
                }
            }
            Ok(())
        })
    }
}

/// The reader of a place's task.
fn reader(place: &TaskPlace) -> Reader {
    Reader { alloc: place.alloc.id, task: place.task.to_string() }
}

impl VaultTokens {
    /// Gets the token of a task before a start. Waits for Vault and the servers, unless the task has a token of an
    /// earlier start.
    async fn obtain(&self, starting: &Starting<'_>, block: &Block) -> Result<Held, StartFailure> {
        let Starting { place, keeper, interrupted, .. } = *starting;
        let failed = |why: String, recoverable| StartFailure::Setup { why, recoverable };
        let Some(vault) = self.vaults.vault() else {
            let why = "this node has no Vault; write a vault block in the configuration of its agent".to_owned();
            return Err(failed(why, false));
        };
        let dir = place.task_dirs().root;
        let begin = tokio::time::Instant::now();
        let (mut told, mut pause) = (String::new(), PAUSES.0);
        let held = loop {
            let from = dir.clone();
            let former = blocking::spawn(move || record::load(&from)).await.unwrap_or_default();
            let attempt = self.attempt(vault, place, block, former);
            let attempt = interrupted.run_until_cancelled(attempt).await.ok_or(StartFailure::Interrupted)?;
            let why = match attempt {
                Ok(held) => break held,
                Err(Trouble::Never(why)) => return Err(failed(why, false)),
                Err(Trouble::Later(why)) => why,
            };
            if why != told && begin.elapsed() >= TELL_AFTER {
                place.tell(events::vault(now_ns(), &format!("Waiting for a token of Vault: {why}")));
                told = why;
            }
            tokio::select! {
                () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(PAUSES.1);
        };
        // A start tells the task.
        let held = Held { untold: false, ..held };
        self.hand_over(place, keeper, block, &held).await.map_err(|why| failed(why, true))?;
        Ok(held)
    }

    /// The token that the task has had, if it still counts, or a new one.
    async fn attempt(
        &self,
        vault: &Vault,
        place: &TaskPlace,
        block: &Block,
        former: Option<Held>,
    ) -> Result<Held, Trouble> {
        if let Some(former) = former.filter(|held| held.life().valid(now_ns())) {
            if matches!(former.life().due(0), Due::Never) {
                return Ok(former);
            }
            if former.life().renewable && block.allow_token_expiration != Some(true) {
                match vault.renew_self(&former.caller()).await {
                    Ok(granted) => return Ok(former.renewed(&granted, now_ns())),
                    Err(error) if error.decided() => {}
                    Err(error) => {
                        tracing::info!(alloc = %place.alloc.id, task = %place.task, %error, "the task is started with \
                            the token of Vault that it had");
                        return Ok(former);
                    }
                }
            }
        }
        self.login(vault, place, block).await
    }

    /// Logs in with the task's identity.
    async fn login(&self, vault: &Vault, place: &TaskPlace, block: &Block) -> Result<Held, Trouble> {
        let signed = self.tokens.sign(place.alloc.id, &place.task, vec![IDENTITY.to_owned()]).await;
        let signed = signed.map_err(|error| match error {
            TokenError::Later(why) => Trouble::Later(why),
            refused @ TokenError::Refused(_) => Trouble::Never(refused.to_string()),
        })?;
        let signed =
            signed.into_iter().next().ok_or_else(|| Trouble::Later("the servers have signed nothing".into()))?;
        let or = |own: &str, of_agent: &str| if own.is_empty() { of_agent.to_owned() } else { own.to_owned() };
        let settings = vault.settings();
        let namespace = or(block.namespace.as_deref().unwrap_or_default(), &settings.namespace);
        let role = or(&block.role, &settings.role);
        let granted = vault.login(&namespace, &role, &Secret::from(signed.token)).await;
        let granted = granted.map_err(|error| match error.decided() {
            true if role.is_empty() => Trouble::Later(format!("login with the default role of Vault: {error}")),
            true => Trouble::Later(format!("login with the role {role:?}: {error}")),
            false => Trouble::Later(error.to_string()),
        })?;
        tracing::debug!(alloc = %place.alloc.id, task = %place.task, role, lease = ?granted.lease, "logged in");
        Ok(Held::new(granted, namespace, now_ns()))
    }

    /// Remembers the token, writes the task's file, and tells those who read secrets with it.
    async fn hand_over(&self, place: &TaskPlace, keeper: Keeper, block: &Block, held: &Held) -> Result<(), String> {
        let dir = place.task_dirs().root;
        let (new, with_file) = (held.clone(), block.disable_file != Some(true));
        let work = move || {
            record::save(&dir, &new).map_err(|e| format!("remember the token of Vault: {e}"))?;
            let look = Look {
                mode: keeper.file_mode(),
                uid: keeper.ids().map(|(uid, _)| uid),
                gid: keeper.ids().map(|(_, gid)| gid),
            };
            let failed = |e: std::io::Error| format!("write {FILE}: {e}");
            let root = Root::open(&dir).map_err(failed)?;
            match with_file {
                true => root.write(Path::new(FILE), new.token.reveal().as_bytes(), look).map(drop).map_err(failed),
                false => Ok(()),
            }
        };
        blocking::spawn(work).await.unwrap_or_else(|e| Err(format!("writing the token of Vault broke off: {e}")))?;
        self.vaults.give(&reader(place), held.caller());
        Ok(())
    }

    /// Keeps the token of a run until the caller cancels it at the run's end. Cancel safe.
    pub async fn watch(&self, place: &TaskPlace, run: &str) {
        let Some(task) = place.task() else { return };
        let (Some(block), Some(vault)) = (&task.vault, self.vaults.vault()) else { return };
        let capabilities = self.drivers.for_ever(&task.driver).await.capabilities().unwrap_or_default();
        let keeper = task_config::keeper_of(task, &capabilities);
        let dir = place.task_dirs().root;
        let mut held = blocking::spawn(move || record::load(&dir)).await.unwrap_or_default();
        if let Some(held) = &held {
            self.vaults.give(&reader(place), held.caller());
        }
        if block.allow_token_expiration == Some(true) && held.is_some() {
            return;
        }
        let spread = self.seeds.next();
        let (mut told, mut pause) = (String::new(), PAUSES.0);
        loop {
            let now = now_ns();
            if let Some(untold) = held.as_ref().filter(|held| held.untold) {
                match self.change(place, run, task, block, untold).await {
                    Ok(true) => return,
                    Ok(false) => held = Some(Held { untold: false, ..untold.clone() }),
                    Err(why) => tell_once(place, &mut told, why),
                }
            }
            let due = held.as_ref().map_or(Due::Replace(now), |held| held.life().due(spread));
            let (Due::Renew(at) | Due::Replace(at)) = due else { return };
            if at > now {
                tokio::time::sleep(Duration::from_nanos(at.abs_diff(now)).min(LOOK)).await;
                continue;
            }
            match self.renew(vault, place, keeper, block, due, held.as_ref()).await {
                Ok(new) => {
                    held = Some(new);
                    told.clear();
                    pause = PAUSES.0;
                }
                Err(why) => {
                    tell_once(
                        place,
                        &mut told,
                        format!("The token of Vault is not renewed, the node goes on trying: {why}"),
                    );
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    /// A renewal, or a new token where that is refused.
    async fn renew(
        &self,
        vault: &Vault,
        place: &TaskPlace,
        keeper: Keeper,
        block: &Block,
        due: Due,
        held: Option<&Held>,
    ) -> Result<Held, String> {
        if let (Due::Renew(_), Some(held)) = (due, held) {
            match vault.renew_self(&held.caller()).await {
                Ok(granted) => {
                    let held = held.renewed(&granted, now_ns());
                    let (dir, new) = (place.task_dirs().root, held.clone());
                    let saved = blocking::spawn(move || record::save(&dir, &new)).await;
                    let saved = saved.map_err(|e| e.to_string())?;
                    saved.map_err(|e| format!("remember the token of Vault: {e}"))?;
                    return Ok(held);
                }
                Err(error) if error.decided() => {
                    tracing::info!(alloc = %place.alloc.id, task = %place.task, %error, "the token of Vault cannot be \
                        renewed, the node logs in again");
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        let new = self.login(vault, place, block).await;
        let new = new.map_err(|trouble| match trouble {
            Trouble::Never(why) | Trouble::Later(why) => why,
        })?;
        // Recorded before the change is made: if the agent dies in between, the next one makes it.
        let new = Held { untold: true, ..new };
        self.hand_over(place, keeper, block, &new).await?;
        Ok(new)
    }

    /// Makes the change that the job asks for with a new token. True when it ends the run.
    async fn change(
        &self,
        place: &TaskPlace,
        run: &str,
        task: &Task,
        block: &Block,
        held: &Held,
    ) -> Result<bool, String> {
        const WHY: &str = "Vault: new Vault token acquired";
        match block.change_mode.as_deref().unwrap_or(change_mode::RESTART) {
            change_mode::NOOP => {}
            change_mode::SIGNAL => {
                let signal = block.change_signal.as_deref().unwrap_or_default();
                place.tell(events::signaling_because(now_ns(), signal, WHY));
                if let Err(why) = self.drivers.signal(&task.driver, run, signal).await {
                    // The task may still read its file at its own time. An event tells people.
                    let said = format!("The signal {signal} that tells of a new token could not be sent: {why}");
                    place.tell(events::vault(now_ns(), &said));
                }
            }
            _ => {
                // The start that follows records that the task knows.
                let (task, run) = (place.task.clone(), run.to_owned());
                let _ = place.inbox.send(Event::DataChanged { task, run, why: WHY.to_owned() });
                return Ok(true);
            }
        }
        let (dir, told) = (place.task_dirs().root, Held { untold: false, ..held.clone() });
        let saved = blocking::spawn(move || record::save(&dir, &told)).await.map_err(|e| e.to_string())?;
        saved.map(|()| false).map_err(|e| format!("remember the token of Vault: {e}"))
    }

    /// The task is over: nobody reads secrets for it, and its token is revoked with the leases that it has. If Vault
    /// does not answer for a few seconds, they end by themselves.
    pub async fn over(&self, place: &TaskPlace) {
        if place.task().is_none_or(|task| task.vault.is_none()) {
            return;
        }
        let reader = reader(place);
        self.watches.forget(&reader);
        self.vaults.end(&reader);
        let dir = place.task_dirs().root;
        let from = dir.clone();
        let held = blocking::spawn(move || record::load(&from)).await.unwrap_or_default();
        let (Some(held), Some(vault)) = (held, self.vaults.vault()) else { return };
        let revoked = async {
            let mut pause = PAUSES.0;
            loop {
                match vault.revoke_self(&held.caller()).await {
                    Ok(()) => return Ok(()),
                    // It is not valid any more.
                    Err(error) if error.decided() => return Ok(()),
                    Err(error) if pause > FAREWELL / 2 => return Err(error.to_string()),
                    Err(_) => tokio::time::sleep(pause).await,
                }
                pause *= 2;
            }
        };
        let revoked = tokio::time::timeout(FAREWELL, revoked).await;
        match revoked.unwrap_or_else(|_| Err(format!("no answer within {} s", FAREWELL.as_secs()))) {
            Ok(()) => {
                let gone = blocking::spawn(move || record::save(&dir, &Held::default())).await;
                if let Ok(Err(error)) = gone {
                    tracing::debug!(%error, "the record of a revoked token stays until its directory goes");
                }
            }
            Err(error) => tracing::warn!(alloc = %place.alloc.id, task = %place.task, error, "the token of Vault of a \
                dead task is not revoked; it ends with its lease"),
        }
    }
}

fn tell_once(place: &TaskPlace, told: &mut String, why: String) {
    if why != *told {
        place.tell(events::vault(now_ns(), &why));
        *told = why;
    }
}
