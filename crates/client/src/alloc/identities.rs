//! Workload identities of a task: tokens that say who it is, signed by the servers, in its files and environment, renewed before they end.
//!
//! ```text
//! start ── ask ── write ── remember ── driver
//! running ─ half of its life is over ─ ask ─ write ─ restart | signal ─ remember
//! ```

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use api::node_rpc::SignedIdentity;
use model::{
    Task,
    canonical::DEFAULT_IDENTITY,
    identity_rules::{change_mode, identities},
    task::Identity,
};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    effects::{self, Subject},
    machine::{Event, StartFailure},
    run::AllocCommand,
    templates::{
        files::{Look, Root},
        place,
    },
};
use crate::{context::now_ns, env::PathView, events, tokens::TokenError};

/// Tokens may be missing this long before people are told.
const TELL_AFTER: Duration = Duration::from_secs(3);
/// Pauses between attempts to get tokens: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Looks at the clock are not further apart: it may be set, and a machine may sleep.
const LOOK: Duration = Duration::from_secs(30);
/// A manager that does not know when the tokens of a remote task were given renews them within this time, in nanoseconds.
const SOON: i64 = 10_000_000_000;

/// A token that a task has; times by the clock of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Token {
    text: String,
    issued_ns: i64,
    /// 0 = never.
    expires_ns: i64,
}

impl Token {
    /// When the next one is due. Spread, so that tasks that were started together do not come together.
    fn renew_at(&self, spread: u64) -> Option<i64> {
        let life = self.expires_ns.checked_sub(self.issued_ns).filter(|_| self.expires_ns > 0)?;
        let tenth = i64::try_from(spread % 1000).unwrap_or(0);
        // 45 to 55 % of its life.
        Some(self.issued_ns.saturating_add(life / 100 * 45).saturating_add(life / 10 / 1000 * tenth))
    }

    fn valid(&self, now: i64) -> bool {
        self.expires_ns == 0 || now < self.expires_ns
    }
}

/// By name of the identity.
type Held = BTreeMap<String, Token>;

const RECORD: &str = "private/identities.json";

/// What the task has; nothing when the record is missing or damaged. Blocking.
fn load(task_dir: &Path) -> Held {
    let read = Root::open(task_dir).and_then(|root| root.read(Path::new(RECORD)));
    read.ok().and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Puts it in place, whole or not at all; only the agent reads it. Blocking.
fn save(task_dir: &Path, held: &Held) -> io::Result<()> {
    let look = Look { mode: 0o600, uid: None, gid: None };
    Root::open(task_dir)?.write(Path::new(RECORD), &serde_json::to_vec(held).unwrap_or_default(), look).map(drop)
}

/// Identities that the task sees something of.
fn exposed(task: &Task) -> impl Iterator<Item = &Identity> {
    identities(task).filter(|i| i.env || i.file)
}

/// The task's variable of an identity.
fn variable(name: &str) -> String {
    if name == DEFAULT_IDENTITY {
        return "NOMAD_TOKEN".to_owned();
    }
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    format!("NOMAD_TOKEN_{clean}")
}

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

/// What templates are told of tokens: the variables that the task has.
#[derive(Clone, Debug)]
pub(crate) enum TokenVariables {
    /// Of a task that runs elsewhere: variables are not renewed there.
    Given(BTreeMap<String, String>),
    /// Of a task of this node: what its record has at the moment. The identity of each variable, and whether it is renewed.
    Recorded { task_dir: PathBuf, of: BTreeMap<String, (String, bool)> },
}

/// A variable that holds a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenVariable {
    /// None while the task has none.
    pub(crate) text: Option<String>,
    /// Another one will come.
    pub(crate) renewed: bool,
}

impl TokenVariables {
    /// Those of a task of this node.
    pub(crate) fn of_record(task: &Task, task_dir: &Path) -> Self {
        let shown = exposed(task).filter(|i| i.env);
        let of = shown.map(|i| (variable(&i.name), (i.name.clone(), i.ttl.nanos() > 0))).collect();
        Self::Recorded { task_dir: task_dir.to_owned(), of }
    }

    /// The token that a variable holds; None when the variable is no token's. Blocking.
    pub(crate) fn find(&self, variable: &str) -> Option<TokenVariable> {
        match self {
            Self::Given(tokens) => tokens.get(variable).map(|text| TokenVariable { text: Some(text.clone()), renewed: false }),
            Self::Recorded { task_dir, of } => {
                let (identity, renewed) = of.get(variable)?;
                Some(TokenVariable { text: load(task_dir).remove(identity).map(|token| token.text), renewed: *renewed })
            }
        }
    }
}

/// Writes the files of tokens, for their task's user only. Blocking.
fn write(subject: &Subject, task: &Task, view: PathView, owner: Option<(u32, u32)>, held: &Held) -> Result<(), String> {
    let dirs = subject.dirs().task(&subject.task);
    for identity in exposed(task).filter(|i| i.file) {
        let Some(token) = held.get(&identity.name) else { continue };
        let failed = |why: String| format!("write the token of identity {:?}: {why}", identity.name);
        let place = place(&file_name(identity), &dirs, view).map_err(failed)?;
        let root = Root::open(if place.shared { &dirs.alloc } else { &dirs.root }).map_err(|e| failed(e.to_string()))?;
        let look = Look { mode: 0o600, uid: owner.map(|(uid, _)| uid), gid: owner.map(|(_, gid)| gid) };
        root.write(&place.path, token.text.as_bytes(), look).map_err(|e| failed(e.to_string()))?;
    }
    Ok(())
}

/// Tokens that have just come, with their life by the clock of this node, which need not be the server's: one that is half a life behind would be asked
/// for new tokens without a pause.
fn held(signed: Vec<SignedIdentity>, now: i64) -> Held {
    let token = |s: SignedIdentity| {
        let life = s.expires_ns.checked_sub(s.issued_ns).filter(|_| s.expires_ns > 0);
        let expires_ns = life.map_or(0, |life| now.saturating_add(life.max(0)));
        (s.identity, Token { text: s.token, issued_ns: now, expires_ns })
    };
    signed.into_iter().map(token).collect()
}

fn names<'a>(wanted: impl Iterator<Item = &'a Identity>) -> Vec<String> {
    wanted.map(|i| i.name.clone()).collect()
}

/// Gets the tokens of a task before a start; answers with its variables. Waits for the servers, unless the task has tokens of an earlier start that
/// have not ended.
pub(crate) async fn issue(
    subject: &Subject,
    task: &Task,
    view: PathView,
    owner: Option<(u32, u32)>,
    interrupted: &CancellationToken,
) -> Result<BTreeMap<String, String>, StartFailure> {
    let wanted = names(exposed(task));
    if wanted.is_empty() {
        return Ok(BTreeMap::new());
    }
    let failed = |why: String, recoverable| StartFailure::Setup { why, recoverable };
    let dir = subject.dirs().task(&subject.task).root;
    let begin = tokio::time::Instant::now();
    let mut told = String::new();
    let tokens = loop {
        let answer = tokio::select! {
            () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
            answer = subject.ctx.tokens.sign(subject.alloc.id, &subject.task, wanted.clone()) => answer,
        };
        let why = match answer {
            Ok(signed) => break held(signed, now_ns()),
            Err(refused @ TokenError::Refused(_)) => return Err(failed(refused.to_string(), false)),
            Err(TokenError::Later(why)) => why,
        };
        let from = dir.clone();
        let mut former = tokio::task::spawn_blocking(move || load(&from)).await.unwrap_or_default();
        former.retain(|name, token| wanted.contains(name) && token.valid(now_ns()));
        if former.len() == wanted.len() {
            tracing::info!(alloc = %subject.alloc.id, task = %subject.task, why, "the task is started with the tokens that it had");
            break former;
        }
        if why != told && begin.elapsed() >= TELL_AFTER {
            super::templates::tell(subject, events::identity(now_ns(), &format!("Waiting for tokens of its identities: {why}")));
            told = why;
        }
        tokio::select! {
            () = interrupted.cancelled() => return Err(StartFailure::Interrupted),
            () = tokio::time::sleep(PAUSES.0) => {}
        }
    };
    let variables = variables(task, &tokens);
    let (subject, task) = (subject.clone(), task.clone());
    let work = move || {
        write(&subject, &task, view, owner, &tokens)?;
        save(&dir, &tokens).map_err(|e| format!("remember the tokens of the task: {e}"))
    };
    let written = tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(format!("writing tokens broke off: {e}")));
    written.map_err(|why| failed(why, true))?;
    Ok(variables)
}

/// When tokens of a task that runs elsewhere are due to be renewed, by identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Due(BTreeMap<String, i64>);

impl Due {
    fn of(tokens: &Held, seed: u64) -> Self {
        Self(tokens.iter().filter_map(|(name, token)| Some((name.clone(), token.renew_at(seed)?))).collect())
    }

    /// Of tokens of which it is not known when they were given. Within a tenth of their life, at most ten seconds, so that a thousand tasks that have
    /// changed their manager do not come together.
    pub(crate) fn soon(task: &Task, now: i64, seed: u64) -> Self {
        let at = |ttl: i64| now.saturating_add((ttl / 10).min(SOON) / 1000 * i64::try_from(seed % 1000).unwrap_or(0));
        Self(mortal(task).map(|i| (i.name.clone(), at(i.ttl.nanos()))).collect())
    }

    /// When the first one is.
    pub(crate) fn next(&self) -> Option<i64> {
        self.0.values().min().copied()
    }

    /// Those that are due at a time.
    pub(crate) fn at(&self, now: i64) -> Vec<String> {
        self.0.iter().filter(|(_, at)| **at <= now).map(|(name, _)| name.clone()).collect()
    }

    pub(crate) fn has(&self, identity: &str) -> bool {
        self.0.contains_key(identity)
    }

    /// What is known of some identities from now on.
    pub(crate) fn extend(&mut self, newer: Due) {
        self.0.extend(newer.0);
    }
}

/// Tokens for a task that runs elsewhere: files that travel to it, and variables.
pub(crate) struct Elsewhere {
    pub(crate) files: Vec<driver_host::BundleFile>,
    pub(crate) variables: BTreeMap<String, String>,
    /// When those that end are due to be renewed.
    pub(crate) due: Due,
}

/// Gets tokens of these identities of a task that runs elsewhere. Nothing is stored on this node. Cancel safe.
pub(crate) async fn elsewhere(
    ctx: &crate::context::NodeContext,
    alloc: model::AllocId,
    task: &Task,
    wanted: Vec<String>,
) -> Result<Elsewhere, TokenError> {
    let tokens = held(ctx.tokens.sign(alloc, &task.name, wanted).await?, now_ns());
    let files = exposed(task).filter(|i| i.file).filter_map(|i| {
        let data = tokens.get(&i.name)?.text.clone().into_bytes();
        Some(driver_host::BundleFile { path: file_name(i), mode: 0o600, data })
    });
    Ok(Elsewhere { files: files.collect(), variables: variables(task, &tokens), due: Due::of(&tokens, ctx.seed()) })
}

/// As [`elsewhere`], all that a create takes along. What could not be renewed there was refused before (`lifecycle::remote::parts`).
pub(crate) async fn bundle(
    ctx: &crate::context::NodeContext,
    alloc: model::AllocId,
    task: &Task,
) -> Result<Elsewhere, super::templates::Unbundled> {
    use super::templates::Unbundled::{Later, Refused};
    let wanted = names(exposed(task));
    if wanted.is_empty() {
        return Ok(Elsewhere { files: Vec::new(), variables: BTreeMap::new(), due: Due::default() });
    }
    elsewhere(ctx, alloc, task, wanted).await.map_err(|error| match error {
        refused @ TokenError::Refused(_) => Refused(refused.to_string()),
        TokenError::Later(why) => Later(format!("waits for tokens of its identities: {why}")),
    })
}

/// Identities whose tokens end while the task has them.
fn mortal(task: &Task) -> impl Iterator<Item = &Identity> {
    exposed(task).filter(|i| i.ttl.nanos() > 0)
}

/// Is there something to renew while the task runs?
pub(crate) fn renewed(task: &Task) -> bool {
    mortal(task).next().is_some()
}

/// Renews the tokens of a run for as long as it lasts. Cancelled when its end is known; safe at any point.
pub(crate) async fn watch(subject: &Subject, run: &str) {
    let Some(task) = subject.job.group(&subject.alloc.task_group).and_then(|g| g.task(&subject.task)) else { return };
    let capabilities = subject.driver_for_ever().await.capabilities().unwrap_or_default();
    let (view, owner) = (super::task_config::path_view(&capabilities), effects::owner_of(task, &capabilities));
    let dir = subject.dirs().task(&subject.task).root;
    let spread = subject.ctx.seed();
    let mut pause = PAUSES.0;
    let mut told = String::new();
    loop {
        let from = dir.clone();
        let mut tokens = tokio::task::spawn_blocking(move || load(&from)).await.unwrap_or_default();
        let now = now_ns();
        // What is not known counts as due.
        let due_at = |i: &Identity| tokens.get(&i.name).map_or(now, |t| t.renew_at(spread).unwrap_or(i64::MAX));
        let next = mortal(task).map(due_at).min().unwrap_or(i64::MAX);
        if next > now {
            tokio::time::sleep(Duration::from_nanos(next.abs_diff(now)).min(LOOK)).await;
            continue;
        }
        let due: Vec<&Identity> = mortal(task).filter(|i| due_at(i) <= now).collect();
        let renewed = match subject.ctx.tokens.sign(subject.alloc.id, &subject.task, names(due.iter().copied())).await {
            Ok(signed) => {
                tokens.extend(held(signed, now_ns()));
                apply(subject, run, task, view, owner, &due, tokens.clone()).await
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
                    super::templates::tell(subject, events::identity(now_ns(), &said));
                    told = why;
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}

/// Gives the task its new tokens and makes the change that its job wants. True when the task ends by it.
async fn apply(
    subject: &Subject,
    run: &str,
    task: &Task,
    view: PathView,
    owner: Option<(u32, u32)>,
    due: &[&Identity],
    tokens: Held,
) -> Result<bool, String> {
    let (writer, of, new) = (subject.clone(), task.clone(), tokens.clone());
    let written = tokio::task::spawn_blocking(move || write(&writer, &of, view, owner, &new)).await;
    written.unwrap_or_else(|e| Err(format!("writing tokens broke off: {e}")))?;
    tracing::debug!(alloc = %subject.alloc.id, task = %subject.task, identities = ?names(due.iter().copied()), "tokens renewed");
    let by = |mode: &str| due.iter().filter(|i| i.change_mode == mode).copied().collect::<Vec<_>>();
    if let Some(identity) = by(change_mode::RESTART).first() {
        // Remembered by the start that follows; an agent that dies before it finds the renewal due again.
        let why = format!("Token of identity {:?} with change_mode restart renewed", identity.name);
        let _ = subject.notes.send(AllocCommand::Event(Event::DataChanged { task: subject.task.clone(), run: run.to_owned(), why }));
        return Ok(true);
    }
    for identity in by(change_mode::SIGNAL) {
        super::templates::tell(subject, events::identity_signaling(now_ns(), &identity.change_signal, &identity.name));
        if let Err(why) = effects::signal(subject, run, &identity.change_signal).await {
            // The task reads its token again at its own time, or not: that is for people to see.
            let said = format!("The signal {} that tells of a renewed token could not be sent: {why}", identity.change_signal);
            super::templates::tell(subject, events::identity(now_ns(), &said));
        }
    }
    let dir = subject.dirs().task(&subject.task).root;
    let saved = tokio::task::spawn_blocking(move || save(&dir, &tokens)).await;
    saved.map_err(|e| e.to_string())?.map_err(|e| format!("remember the tokens of the task: {e}"))?;
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_around_half_of_their_life() {
        let second = 1_000_000_000;
        let token = Token { issued_ns: 100 * second, expires_ns: 200 * second, ..Token::default() };
        assert_eq!(token.renew_at(0), Some(145 * second));
        for spread in [1, 500, 999, 1999] {
            let at = token.renew_at(spread).expect("it ends");
            assert!((145 * second..=155 * second).contains(&at), "{at}");
        }
        assert!(token.valid(199 * second) && !token.valid(200 * second));
        let eternal = Token { expires_ns: 0, ..token };
        assert_eq!((eternal.renew_at(7), eternal.valid(i64::MAX)), (None, true));
    }

    #[test]
    fn tokens_are_due_by_the_clock_of_this_node() {
        let second = 1_000_000_000;
        // The server's clock is an hour behind.
        let signed =
            |identity: &str, issued_ns, expires_ns| SignedIdentity { identity: identity.into(), token: "t".into(), issued_ns, expires_ns };
        let now = 3600 * second;
        let tokens = held(vec![signed("a", 0, 100 * second), signed("b", 5, 0), signed("odd", 10, 5)], now);
        assert_eq!(tokens["a"].renew_at(0), Some(now + 45 * second));
        assert!(tokens["a"].valid(now + 99 * second) && !tokens["a"].valid(now + 100 * second));
        assert!(tokens["b"].valid(i64::MAX), "a token without an end has none here either");
        assert!(!tokens["odd"].valid(now), "one that ends before it begins has ended");
        let mut mortal = tokens;
        mortal.remove("odd");
        let due = Due::of(&mortal, 0);
        assert_eq!((due.next(), due.has("a"), due.has("b")), (Some(now + 45 * second), true, false));
        assert_eq!((due.at(now), due.at(now + 45 * second)), (Vec::new(), vec!["a".to_owned()]));

        let identity =
            |name: &str, ttl| Identity { name: name.into(), file: true, ttl: model::GoDuration::from_secs(ttl), ..Identity::default() };
        let task = Task { identities: vec![identity("short", 20), identity("long", 36_000), identity("for-ever", 0)], ..Task::default() };
        for seed in [0, 1, 999, 123_456] {
            let soon = Due::soon(&task, now, seed);
            assert!(soon.has("short") && soon.has("long") && !soon.has("for-ever"));
            let (short, long) = (soon.0["short"] - now, soon.0["long"] - now);
            assert!((0..2 * second).contains(&short) && (0..10 * second).contains(&long), "{short} {long}");
        }
        assert_ne!(Due::soon(&task, now, 1).next(), Due::soon(&task, now, 999).next(), "spread");
    }

    #[test]
    fn names_in_the_task() {
        assert_eq!((variable("default").as_str(), variable("vault-1_x").as_str()), ("NOMAD_TOKEN", "NOMAD_TOKEN_vault_1_x"));
        let identity = |name: &str, filepath: &str| Identity { name: name.into(), filepath: filepath.into(), ..Identity::default() };
        assert_eq!(file_name(&identity("default", "")), "secrets/nomad_token");
        assert_eq!(file_name(&identity("aws", "")), "secrets/nomad_aws.jwt");
        assert_eq!(file_name(&identity("aws", "local/x.jwt")), "local/x.jwt");
    }
}
