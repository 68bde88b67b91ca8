//! Whose token a request shows, and the rights that come of it.
//!
//! Rights are compiled once for each token and state of the policies and roles: a change of a policy, a role or a
//! token counts with the next request. Expiry is judged at each use, and so is the end of a task whose identity is
//! shown.

use std::{
    collections::{BTreeSet, HashMap},
    hash::{BuildHasherDefault, Hasher},
    sync::{Arc, PoisonError, RwLock, RwLockWriteGuard},
};

use access::{Access, Identity, Rules};
use model::{
    AclToken, AllocId, JobKey, NodeId, Secret, StoreIndex, TimestampNs, acl::ANONYMOUS,
    canonical::DEFAULT_IDENTITY_AUDIENCE,
};
use serde_json::Value;
use server::ServerHandle;
use state::{State, Table, TableSet};

/// Callers whose rights are kept; beyond, all are compiled again.
const KEPT: usize = 4096;

/// Who is behind a token, and what that caller may.
pub(crate) struct Known {
    /// The rights; shared by the tokens with the same policies.
    pub(crate) access: Arc<Access>,
    /// The token; None = none was shown, or the identity of a task.
    pub(crate) token: Option<Arc<AclToken>>,
    /// When the token expires, in Unix nanoseconds; None = never.
    expires: Option<TimestampNs>,
    /// The policies that the rights come from, also those of roles.
    pub(crate) policies: BTreeSet<Arc<str>>,
}

impl Known {
    /// Nobody: only what is open to all.
    pub(crate) fn nobody() -> Self {
        Self::of(Access::none(), BTreeSet::new())
    }

    /// Somebody without a token.
    fn of(access: Access, policies: BTreeSet<Arc<str>>) -> Self {
        Self { access: Arc::new(access), token: None, expires: None, policies }
    }
}

/// The time of day, in Unix nanoseconds.
fn now() -> TimestampNs {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// What was compiled, for these policies and roles.
#[derive(Default)]
struct Kept {
    /// Index of the newest change of a policy or role.
    index: StoreIndex,
    /// By accessor of the token, empty for callers without one; with the token's index.
    by_accessor: HashMap<Arc<str>, (StoreIndex, Arc<Known>)>,
    /// Rights by the policies that give them: many tokens have the same, and few rights stay near the processor.
    by_policies: HashMap<BTreeSet<Arc<str>>, Arc<Access>>,
    /// The rules of policies.
    rules: HashMap<Arc<str>, Option<Arc<Rules>>>,
    /// By the digest of the token's secret, of tokens as they were at `secrets_at`.
    by_secret: HashMap<[u8; 32], Arc<Known>, BuildHasherDefault<Prefix>>,
    /// Index of the newest change of a token, a policy or a role.
    secrets_at: StoreIndex,
}

/// Hashes a digest by its beginning: it is as good as random already.
#[derive(Default)]
struct Prefix(u64);

impl Hasher for Prefix {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk::<8>() {
            self.0 = u64::from_le_bytes(*first);
        }
    }
    /// The length, which is always the same.
    fn write_usize(&mut self, _: usize) {}
}

impl Kept {
    /// Keeps whose secret it is, for as long as no token, policy or role changes.
    fn keep(&mut self, digest: Option<[u8; 32]>, tokens_at: StoreIndex, known: &Arc<Known>) {
        let Some(digest) = digest.filter(|_| tokens_at >= self.secrets_at) else { return };
        if tokens_at > self.secrets_at || self.by_secret.len() >= KEPT {
            self.by_secret.clear();
            self.secrets_at = tokens_at;
        }
        self.by_secret.insert(digest, known.clone());
    }
}

/// Knows the tokens of a cluster with ACLs.
#[derive(Default)]
pub(crate) struct Authority {
    kept: RwLock<Kept>,
}

impl Authority {
    /// Whoever shows this text, which is empty when none is shown; None = it is no valid token in this state.
    pub(crate) fn caller(&self, server: &ServerHandle, state: &State, shown: &str) -> Option<Arc<Known>> {
        // A JWT has three parts; its task may have ended, whatever was known of it before.
        if shown.contains('.') {
            let claims = server.keyring().verify(shown).filter(for_this_api)?;
            return match claims["nomad_node_id"].is_null() {
                true => self.of_task(state, &claims, now()),
                false => of_node(state, &claims, now()),
            };
        }
        let digest = (!shown.is_empty()).then(|| Secret::digest_of(shown));
        let tokens_at = state.index_of(TableSet::from_iter([Table::AclTokens, Table::AclPolicies, Table::AclRoles]));
        // Most requests come with a token that came before: one look instead of a search among all tokens.
        if let Some(digest) = &digest {
            let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
            if kept.secrets_at == tokens_at
                && let Some(known) = kept.by_secret.get(digest)
            {
                let known = known.clone();
                drop(kept);
                return known.expires.is_none_or(|at| at > now()).then_some(known);
            }
        }
        let token = match &digest {
            None => None,
            Some(digest) => Some(state.acl_token_by_digest(digest).filter(|token| !token.expired(now()))?),
        };
        let (accessor, modified) =
            token.map_or_else(|| (Arc::from(""), 0), |token| (token.accessor_id.clone(), token.modify_index));
        let index = state.index(Table::AclPolicies).max(state.index(Table::AclRoles));
        {
            let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
            if kept.index == index
                && let Some((at, known)) = kept.by_accessor.get(&accessor)
                && *at == modified
            {
                let known = known.clone();
                kept.keep(digest, tokens_at, &known);
                return Some(known);
            }
        }
        let known = Arc::new(match token {
            None => {
                let policies = [Arc::from(ANONYMOUS)].into();
                let rules = self.compiled(state, index, &policies);
                Known::of(Access::anonymous(rules.iter().map(|(name, rules)| (&**name, &**rules))), policies)
            }
            Some(token) => {
                let policies = if token.management() { BTreeSet::new() } else { policies_of(state, token) };
                let access = match token.management() {
                    true => Arc::new(Access::management()),
                    false => self.shared(state, index, &policies),
                };
                Known { access, token: Some(token.clone()), expires: token.expiration_time.ns(), policies }
            }
        });
        let mut kept = self.at(index);
        if kept.index == index {
            if kept.by_accessor.len() >= KEPT {
                kept.by_accessor.clear();
            }
            kept.by_accessor.insert(accessor, (modified, known.clone()));
            kept.keep(digest, tokens_at, &known);
        }
        drop(kept);
        Some(known)
    }

    /// What is kept, emptied where it is older than this index. A slower request may come with an older state: it
    /// leaves what is newer.
    fn at(&self, index: StoreIndex) -> RwLockWriteGuard<'_, Kept> {
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.index < index {
            *kept = Kept { index, ..Kept::default() };
        }
        kept
    }

    /// The rules of these policies. One that does not exist gives nothing.
    fn compiled(&self, state: &State, index: StoreIndex, names: &BTreeSet<Arc<str>>) -> Vec<(Arc<str>, Arc<Rules>)> {
        let rules = |name: &Arc<str>| {
            let mut kept = self.at(index);
            if kept.index == index
                && let Some(rules) = kept.rules.get(name)
            {
                return rules.clone();
            }
            drop(kept);
            let read = state.acl_policy(name).and_then(|policy| match access::parse(&policy.rules) {
                Ok(rules) => Some(Arc::new(rules)),
                // What was written before a release that reads it differently.
                Err(error) => {
                    tracing::error!(policy = %name, %error, "an ACL policy cannot be read and gives nothing");
                    None
                }
            });
            kept = self.at(index);
            if kept.index == index {
                kept.rules.insert(name.clone(), read.clone());
            }
            read
        };
        names.iter().filter_map(|name| Some((name.clone(), rules(name)?))).collect()
    }

    /// The rights of these policies, the same for all who have them.
    fn shared(&self, state: &State, index: StoreIndex, policies: &BTreeSet<Arc<str>>) -> Arc<Access> {
        let kept = self.at(index);
        if kept.index == index
            && let Some(access) = kept.by_policies.get(policies)
        {
            return access.clone();
        }
        drop(kept);
        let access = Arc::new(self.of_policies(state, index, policies));
        let mut kept = self.at(index);
        if kept.index == index {
            if kept.by_policies.len() >= KEPT {
                kept.by_policies.clear();
            }
            kept.by_policies.insert(policies.clone(), access.clone());
        }
        access
    }

    fn of_policies(&self, state: &State, index: StoreIndex, names: &BTreeSet<Arc<str>>) -> Access {
        let rules = self.compiled(state, index, names);
        Access::of(rules.iter().map(|(name, rules)| (&**name, &**rules)))
    }

    /// The rights of a task whose identity is shown, while its allocation is not terminal.
    fn of_task(&self, state: &State, claims: &Value, now: TimestampNs) -> Option<Arc<Known>> {
        let id = claims["nomad_allocation_id"].as_str().and_then(|id| id.parse().ok()).map(AllocId)?;
        let alloc = state.alloc(id).filter(|alloc| !alloc.client_terminal())?;
        if lapsed(claims, now / 1_000_000_000, true).is_some() {
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
        let index = state.index(Table::AclPolicies).max(state.index(Table::AclRoles));
        let policies = attached(state, &task);
        let access = self.of_policies(state, index, &policies).with_identity(task);
        Some(Arc::new(Known::of(access, policies)))
    }
}

/// Whether an identity is meant for the servers. A task gives one for another audience to others, such as a cloud:
/// they are not to act as the task here.
fn for_this_api(claims: &Value) -> bool {
    match &claims["aud"] {
        Value::Array(several) => several.iter().any(|one| one == DEFAULT_IDENTITY_AUDIENCE),
        one => one == DEFAULT_IDENTITY_AUDIENCE,
    }
}

/// The rights of a node whose identity is shown, while it is registered.
fn of_node(state: &State, claims: &Value, now: TimestampNs) -> Option<Arc<Known>> {
    let id: NodeId = claims["nomad_node_id"].as_str()?.parse().ok()?;
    state.node(id)?;
    if lapsed(claims, now / 1_000_000_000, true).is_some() {
        return None;
    }
    Some(Arc::new(Known::of(Access::of_node(id.to_string()), BTreeSet::new())))
}

/// The policies of a token, also those of its roles.
pub(crate) fn policies_of(state: &State, token: &AclToken) -> BTreeSet<Arc<str>> {
    let roles = token.roles.iter().filter_map(|link| state.acl_role(&link.id));
    let of_roles = roles.flat_map(|role| role.policies.iter().map(|policy| policy.name.as_str().into()));
    token.policies.iter().map(|name| name.as_str().into()).chain(of_roles).collect()
}

/// The policies that are attached to the allocations of a task. A job made by dispatch or by time has those of its
/// parent.
fn attached(state: &State, task: &Identity) -> BTreeSet<Arc<str>> {
    let of_jobs = state.acl_policies_of_job(&task.namespace, &task.job);
    let of_namespace = state.acl_policies_of_job(&task.namespace, "");
    let concerns = |policy: &&Arc<model::AclPolicy>| {
        policy.job_acl.as_ref().is_some_and(|job| {
            (job.group.is_empty() || job.group == task.group)
                && (job.task.is_empty() || task.task.as_ref() == Some(&job.task))
        })
    };
    of_jobs.chain(of_namespace).filter(concerns).map(|policy| policy.name.clone()).collect()
}

/// Why a token of ours is good for nothing any more.
pub(crate) fn lapsed(claims: &serde_json::Value, now: i64, stands: bool) -> Option<String> {
    if claims["exp"].as_i64().is_some_and(|exp| exp <= now) {
        return Some("the token has expired".to_owned());
    }
    (!stands).then(|| {
        format!(
            "the allocation {} that the token was given to has ended",
            claims["nomad_allocation_id"].as_str().unwrap_or_default()
        )
    })
}
