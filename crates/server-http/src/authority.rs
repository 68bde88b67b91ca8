//! Whose token a request shows, and the rights that come of it.
//!
//! Rights are compiled once for each token and state of the ACL tables: a change of a policy, a role or a token counts
//! with the next request. Expiry is judged at each use, and so is the end of a task whose identity is shown.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use access::{Access, Identity, Rules};
use model::{AllocId, JobKey};
use server::ServerHandle;
use state::State;

use crate::{caller::Authority, keyring::lapsed};

/// Callers whose rights are kept; beyond, all are compiled again.
const KEPT: usize = 4096;
/// The policy of callers without a token.
const ANONYMOUS: &str = "anonymous";

/// A token as its record has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenRights {
    /// It may everything.
    pub management: bool,
    /// When it expires, in nanoseconds since 1970; None = never.
    pub expires: Option<i64>,
    /// Names of its policies, also those that come by its roles.
    pub policies: Vec<String>,
}

/// Where tokens and policies are kept.
pub trait Records: Send + Sync {
    /// Index of the newest change of tokens, policies and roles.
    fn index(&self, state: &State) -> u64;
    /// The token with this secret.
    fn token(&self, state: &State, secret: &str) -> Option<TokenRights>;
    /// The rules of a policy; None = there is no such policy, and then it gives nothing.
    fn rules(&self, state: &State, policy: &str) -> Option<String>;
    /// The policies that are attached to the allocations of this task. A job made by dispatch or by time has those of
    /// its parent.
    fn attached(&self, state: &State, task: &Identity) -> Vec<String>;
}

/// Who is behind a token, and until when.
#[derive(Clone)]
struct Known {
    access: Arc<Access>,
    expires: Option<i64>,
}

#[derive(Default)]
struct Kept {
    index: u64,
    by_token: HashMap<String, Known>,
}

/// The authority over tokens that are kept there.
pub fn authority(records: impl Records + 'static) -> Authority {
    let kept = Mutex::new(Kept::default());
    Arc::new(move |server, token| {
        let now = i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX);
        // A JWT has three parts; its task may have ended, whatever was known of it before.
        if token.contains('.') {
            return of_task(&records, server, token, now);
        }
        let state = server.snapshot();
        let index = records.index(&state);
        let unexpired = |known: Known| known.expires.is_none_or(|at| at > now).then_some(known.access);
        {
            let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.index == index
                && let Some(known) = kept.by_token.get(token)
            {
                return unexpired(known.clone());
            }
        }
        let known = of_token(&records, &state, token)?;
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        // A slower request may come with an older state: it leaves what is newer.
        if kept.index < index || kept.by_token.len() >= KEPT {
            *kept = Kept { index, by_token: HashMap::new() };
        }
        if kept.index == index {
            kept.by_token.insert(token.to_owned(), known.clone());
        }
        unexpired(known)
    })
}

fn compiled(records: &dyn Records, state: &State, names: &[String]) -> Vec<(String, Rules)> {
    let read = |name: &String| {
        let text = records.rules(state, name)?;
        match access::parse(&text) {
            Ok(rules) => Some((name.clone(), rules)),
            // What was written before a release that reads it differently.
            Err(error) => {
                tracing::error!(policy = %name, %error, "an ACL policy cannot be read and gives nothing");
                None
            }
        }
    };
    names.iter().filter_map(read).collect()
}

fn of_policies(records: &dyn Records, state: &State, names: &[String]) -> Access {
    let rules = compiled(records, state, names);
    Access::of(rules.iter().map(|(name, rules)| (name.as_str(), rules)))
}

fn of_token(records: &dyn Records, state: &State, token: &str) -> Option<Known> {
    if token.is_empty() {
        let rules = compiled(records, state, &[ANONYMOUS.to_owned()]);
        let access = Access::anonymous(rules.iter().map(|(name, rules)| (name.as_str(), rules)));
        return Some(Known { access: Arc::new(access), expires: None });
    }
    let TokenRights { management, expires, policies } = records.token(state, token)?;
    let access = if management { Access::management() } else { of_policies(records, state, &policies) };
    Some(Known { access: Arc::new(access), expires })
}

/// The rights of a task whose identity is shown, while its allocation is not terminal.
fn of_task(records: &dyn Records, server: &ServerHandle, token: &str, now: i64) -> Option<Arc<Access>> {
    let claims = server.keyring().verify(token)?;
    let state = server.snapshot();
    let id = claims["nomad_allocation_id"].as_str().and_then(|id| id.parse().ok()).map(AllocId)?;
    let alloc = state.alloc(id).filter(|alloc| !alloc.client_terminal())?;
    if lapsed(&claims, now / 1_000_000_000, true).is_some() {
        return None;
    }
    // The claims name the parent of a child; the allocation is what stands.
    let job = state.job(&JobKey::new(alloc.namespace.clone(), alloc.job_id.clone()));
    let parent = job.filter(|job| !job.parent_id.is_empty()).map(|job| job.parent_id.to_string());
    let task = Identity {
        namespace: alloc.namespace.to_string(),
        job: parent.unwrap_or_else(|| alloc.job_id.to_string()),
        group: alloc.task_group.to_string(),
        task: claims["nomad_task"].as_str().map(str::to_owned),
    };
    let access = of_policies(records, &state, &records.attached(&state, &task)).with_identity(task);
    Some(Arc::new(access))
}
