//! Workload identities of a task: tokens that prove its identity. The servers sign them. The node writes them to files
//! and environment, and renews them before they expire.
//!
//! ```text
//! start ── ask ── write ── remember ── driver
//! running ─ half of its life is over ─ ask ─ write ─ restart | signal ─ remember
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use api::node_rpc::SignedIdentity;
use host::{clock::now_ns, dirs::Keeper, env::PathView, seeds::Seeds};
use lifecycle::{
    alloc::{
        events,
        machine::{Event, StartFailure},
    },
    identities::{Due, exposed, mortal},
};
use model::{Task, canonical::DEFAULT_IDENTITY, identity_rules::change_mode, task::Identity};

pub use crate::token_record::TokenVariables;
use crate::{
    drivers::Drivers,
    files::{Look, Root},
    hook::{Given, Hook, Prepared, Starting},
    identity_token::Token,
    paths,
    place::TaskPlace,
    task_config,
    token_record::{Held, load, save, variable},
    tokens::{TokenError, Tokens},
};

/// How long tokens may be missing before an event tells people.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Pauses between attempts to get tokens: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Longest time between two looks at the clock: somebody may set it, and a machine may sleep.
const LOOK: Duration = Duration::from_secs(30);

/// The task's file of an identity, below its directory.
fn file_name(identity: &Identity) -> String {
    match identity.name.as_str() {
        _ if !identity.filepath.is_empty() => identity.filepath.clone(),
        DEFAULT_IDENTITY => "secrets/nomad_token".to_owned(),
        name => format!("secrets/nomad_{name}.jwt"),
    }
}

fn variables(task: &Task, held: &Held) -> BTreeMap<String, String> {
    exposed(task).filter(|i| i.env).filter_map(|i| Some((variable(&i.name), held.get(&i.name)?.text.clone()))).collect()
}

/// Writes the token files, for their keeper only. Blocking.
fn write(place: &TaskPlace, task: &Task, view: PathView, keeper: Keeper, held: &Held) -> Result<(), String> {
    let dirs = place.task_dirs();
    for identity in exposed(task).filter(|i| i.file) {
        let Some(token) = held.get(&identity.name) else { continue };
        let failed = |why: String| format!("write the token of identity {:?}: {why}", identity.name);
        let to = paths::place(&file_name(identity), &dirs, view).map_err(failed)?;
        let opened = if to.shared { Root::open_shared(&dirs.alloc) } else { Root::open(&dirs.root) };
        let root = opened.map_err(|e| failed(e.to_string()))?;
        let look = Look {
            mode: keeper.file_mode(),
            uid: keeper.ids().map(|(uid, _)| uid),
            gid: keeper.ids().map(|(_, gid)| gid),
        };
        root.write(&to.path, token.text.as_bytes(), look).map_err(|e| failed(e.to_string()))?;
    }
    Ok(())
}

fn held(signed: Vec<SignedIdentity>, now: i64) -> Held {
    signed.into_iter().map(|s| (s.identity.clone(), Token::new(s, now))).collect()
}

/// When the tokens are due for renewal.
fn due_of(tokens: &Held, spread: u64) -> Due {
    Due::of(tokens.iter().map(|(name, token)| (&**name, token.issued_ns, token.expires_ns)), spread)
}

fn names<'a>(wanted: impl Iterator<Item = &'a Identity>) -> Vec<String> {
    wanted.map(|i| i.name.clone()).collect()
}

/// Tokens for a task that runs elsewhere: files that travel to it, and variables.
pub struct Elsewhere {
    /// Files that travel to the task.
    pub files: Vec<driver_host::BundleFile>,
    /// Variables of the task, by name.
    pub variables: BTreeMap<String, String>,
    /// When the tokens are due for renewal.
    pub due: Due,
}

/// Gives tasks their identity tokens.
pub struct Identities {
    /// Requests tokens from the servers.
    pub tokens: Tokens,
    /// Send a task the signal that tells of a renewed token.
    pub drivers: Arc<Drivers>,
    /// Spread the renewals.
    pub seeds: Seeds,
}

impl Hook for Identities {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a> {
        Box::pin(async {
            given.env.extend(self.issue(starting).await?);
            Ok(())
        })
    }
}

impl Identities {
    /// Gets the tokens of a task before a start and returns its variables. Waits for the servers, unless valid tokens
    /// of an earlier start exist.
    async fn issue(&self, starting: &Starting<'_>) -> Result<BTreeMap<String, String>, StartFailure> {
        let Starting { place, keeper, interrupted, .. } = *starting;
        let (task, view) = (starting.spec.task, task_config::path_view(starting.capabilities));
        let wanted = names(exposed(task));
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let failed = |why: String, recoverable| StartFailure::Setup { why, recoverable };
        let dir = place.task_dirs().root;
        let begin = tokio::time::Instant::now();
        let mut told = String::new();
        let tokens = loop {
            let answer = tokio::select! {
                () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
                answer = self.tokens.sign(place.alloc.id, &place.task, wanted.clone()) => answer,
            };
            let why = match answer {
                Ok(signed) => break held(signed, now_ns()),
                Err(refused @ TokenError::Refused(_)) => return Err(failed(refused.to_string(), false)),
                Err(TokenError::Later(why)) => why,
            };
            let from = dir.clone();
            let mut former = blocking::spawn(move || load(&from)).await.unwrap_or_default();
            former.retain(|name, token| wanted.contains(name) && token.valid(now_ns()));
            if former.len() == wanted.len() {
                tracing::info!(alloc = %place.alloc.id, task = %place.task, why, "the task is started with the tokens \
                    that it had");
                break former;
            }
            if why != told && begin.elapsed() >= TELL_AFTER {
                place.tell(events::identity(now_ns(), &format!("Waiting for tokens of its identities: {why}")));
                told = why;
            }
            tokio::select! {
                () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
                () = tokio::time::sleep(PAUSES.0) => {}
            }
        };
        let variables = variables(task, &tokens);
        let (place, task) = (place.clone(), task.clone());
        let work = move || {
            write(&place, &task, view, keeper, &tokens)?;
            save(&dir, &tokens).map_err(|e| format!("remember the tokens of the task: {e}"))
        };
        let written = blocking::spawn(work).await.unwrap_or_else(|e| Err(format!("writing tokens broke off: {e}")));
        written.map_err(|why| failed(why, true))?;
        Ok(variables)
    }

    /// Gets tokens of these identities for a task that runs elsewhere. Stores nothing on this node. Cancel safe.
    ///
    /// # Errors
    /// When the servers refuse, or none has answered.
    pub async fn elsewhere(
        &self,
        alloc: model::AllocId,
        task: &Task,
        wanted: Vec<String>,
    ) -> Result<Elsewhere, TokenError> {
        let tokens = held(self.tokens.sign(alloc, &task.name, wanted).await?, now_ns());
        let files = exposed(task).filter(|i| i.file).filter_map(|i| {
            let data = tokens.get(&i.name)?.text.clone().into_bytes();
            Some(driver_host::BundleFile { path: file_name(i), mode: 0o600, data })
        });
        Ok(Elsewhere {
            files: files.collect(),
            variables: variables(task, &tokens),
            due: due_of(&tokens, self.seeds.next()),
        })
    }

    /// Renews the tokens of a run until the caller cancels it at the run's end. Cancel safe.
    pub async fn watch(&self, place: &TaskPlace, run: &str) {
        let Some(task) = place.task() else { return };
        let capabilities = self.drivers.for_ever(&task.driver).await.capabilities().unwrap_or_default();
        let (view, keeper) = (task_config::path_view(&capabilities), task_config::keeper_of(task, &capabilities));
        let dir = place.task_dirs().root;
        let spread = self.seeds.next();
        let mut pause = PAUSES.0;
        let mut told = String::new();
        loop {
            let from = dir.clone();
            let mut tokens = blocking::spawn(move || load(&from)).await.unwrap_or_default();
            let now = now_ns();
            // An unknown token counts as due.
            let due_at = |i: &Identity| tokens.get(&i.name).map_or(now, |t| t.renew_at(spread).unwrap_or(i64::MAX));
            let next = mortal(task).map(due_at).min().unwrap_or(i64::MAX);
            if next > now {
                tokio::time::sleep(Duration::from_nanos(next.abs_diff(now)).min(LOOK)).await;
                continue;
            }
            let due: Vec<&Identity> = mortal(task).filter(|i| due_at(i) <= now).collect();
            let renewed = match self.tokens.sign(place.alloc.id, &place.task, names(due.iter().copied())).await {
                Ok(signed) => {
                    tokens.extend(held(signed, now_ns()));
                    self.apply(place, run, task, (view, keeper), &due, tokens.clone()).await
                }
                Err(error) => Err(error.to_string()),
            };
            match renewed {
                Ok(true) => return,
                Ok(false) => {
                    told.clear();
                    pause = PAUSES.0;
                }
                Err(why) => {
                    if why != told {
                        let names = names(due.into_iter()).join(", ");
                        let said = format!("Tokens of {names} are not renewed, the node goes on trying: {why}");
                        place.tell(events::identity(now_ns(), &said));
                        told = why;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
    }

    /// Gives the task its new tokens and makes the change that its job asks for. True when that change ends the task.
    async fn apply(
        &self,
        place: &TaskPlace,
        run: &str,
        task: &Task,
        (view, keeper): (PathView, Keeper),
        due: &[&Identity],
        tokens: Held,
    ) -> Result<bool, String> {
        let (writer, of, new) = (place.clone(), task.clone(), tokens.clone());
        let written = blocking::spawn(move || write(&writer, &of, view, keeper, &new)).await;
        written.unwrap_or_else(|e| Err(format!("writing tokens broke off: {e}")))?;
        tracing::debug!(alloc = %place.alloc.id, task = %place.task, identities = ?names(due.iter().copied()),
            "tokens renewed");
        let by = |mode: &str| due.iter().filter(|i| i.change_mode == mode).copied().collect::<Vec<_>>();
        if let Some(identity) = by(change_mode::RESTART).first() {
            // The start that follows saves the record. If the agent dies before, the next one finds the renewal due
            // again.
            let why = format!("Token of identity {:?} with change_mode restart renewed", identity.name);
            let _ = place.inbox.send(Event::DataChanged { task: place.task.clone(), run: run.to_owned(), why });
            return Ok(true);
        }
        for identity in by(change_mode::SIGNAL) {
            place.tell(events::identity_signaling(now_ns(), &identity.change_signal, &identity.name));
            if let Err(why) = self.drivers.signal(place.driver_name(), run, &identity.change_signal).await {
                // The task may still read its token at its own time. An event tells people.
                let said = format!(
                    "The signal {} that tells of a renewed token could not be sent: {why}",
                    identity.change_signal
                );
                place.tell(events::identity(now_ns(), &said));
            }
        }
        let dir = place.task_dirs().root;
        let saved = blocking::spawn(move || save(&dir, &tokens)).await;
        saved.map_err(|e| e.to_string())?.map_err(|e| format!("remember the tokens of the task: {e}"))?;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_due_by_the_clock_of_this_node() {
        let second = 1_000_000_000;
        // The server's clock is an hour behind.
        let signed = |identity: &str, issued_ns, expires_ns| SignedIdentity {
            identity: identity.into(),
            token: "t".into(),
            issued_ns,
            expires_ns,
        };
        let now = 3600 * second;
        let tokens = held(vec![signed("a", 0, 100 * second), signed("b", 5, 0), signed("odd", 10, 5)], now);
        assert_eq!(tokens["a"].renew_at(0), Some(now + 45 * second));
        assert!(tokens["a"].valid(now + 99 * second) && !tokens["a"].valid(now + 100 * second));
        assert!(tokens["b"].valid(i64::MAX), "a token without an end has none here either");
        assert!(!tokens["odd"].valid(now), "one that ends before it begins has ended");
        let mut mortal = tokens;
        mortal.remove("odd");
        let due = due_of(&mortal, 0);
        assert_eq!((due.next(), due.has("a"), due.has("b")), (Some(now + 45 * second), true, false));
    }

    #[test]
    fn names_in_the_task() {
        assert_eq!(
            (variable("default").as_str(), variable("vault-1_x").as_str()),
            ("NOMAD_TOKEN", "NOMAD_TOKEN_vault_1_x")
        );
        let identity = |name: &str, filepath: &str| Identity {
            name: name.into(),
            filepath: filepath.into(),
            ..Identity::default()
        };
        assert_eq!(file_name(&identity("default", "")), "secrets/nomad_token");
        assert_eq!(file_name(&identity("aws", "")), "secrets/nomad_aws.jwt");
        assert_eq!(file_name(&identity("aws", "local/x.jwt")), "local/x.jwt");
    }
}
