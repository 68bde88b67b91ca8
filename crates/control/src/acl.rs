//! Access control: which policies, tokens and roles may be written, the first token, and one-time tokens.
//!
//! Ids and secrets come from the caller, as does the time. Error texts are Nomad's.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use model::{
    AclPolicy, AclRole, AclRolePolicy, AclToken, AclTokenRole, GoDuration, GoTime, OneTimeToken, TimestampNs,
    acl::{BOOTSTRAP_NAME, token_type},
};
use state::{Batch, Change, State};
use uuid::Uuid;

use crate::{Decided, Ids, Refused, Stamp};

/// How long a one-time token is valid.
pub const ONE_TIME_VALID: Duration = Duration::from_secs(600);

/// Longest description, bytes.
pub(crate) const MAX_DESCRIPTION: usize = 256;
/// Longest name of a token, bytes.
pub(crate) const MAX_TOKEN_NAME: usize = 256;

/// Bounds of the time to live of a token.
#[derive(Clone, Copy, Debug)]
pub struct Ttl {
    /// Shortest.
    pub min: Duration,
    /// Longest.
    pub max: Duration,
}

/// What is wrong with an object, as clients know it.
pub(crate) fn several(what: &str, wrong: &[String]) -> Result<(), Refused> {
    if wrong.is_empty() {
        return Ok(());
    }
    let count = if wrong.len() == 1 { "1 error".to_owned() } else { format!("{} errors", wrong.len()) };
    let list: String = wrong.iter().map(|text| format!("\n\t* {text}")).collect();
    Err(Refused::BadRequest(format!("{what} 0 invalid: {count} occurred:{list}\n\n")))
}

pub(crate) fn bad<T>(text: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::BadRequest(text.into()))
}

/// Whether a policy or role may have this name.
pub(crate) fn named(name: &str) -> bool {
    (1..=128).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Creates or changes a policy. Answers with the index.
///
/// # Errors
/// What is wrong with it.
pub fn put_policy(policy: AclPolicy, stamp: Stamp) -> Result<Decided<u64>, Refused> {
    let mut wrong = Vec::new();
    if !named(&policy.name) {
        wrong.push(format!("invalid name '{}'", policy.name));
    }
    if policy.description.len() > MAX_DESCRIPTION {
        wrong.push(format!("description longer than {MAX_DESCRIPTION}"));
    }
    if let Some(job) = &policy.job_acl {
        let needs = [
            (&job.job_id, &job.namespace, "namespace must be set to set job ID"),
            (&job.group, &job.job_id, "job ID must be set to set group"),
            (&job.task, &job.group, "group must be set to set task"),
        ];
        wrong.extend(needs.into_iter().filter(|(of, on, _)| !of.is_empty() && on.is_empty()).map(|n| n.2.to_owned()));
    }
    if let Err(error) = access::parse(&policy.rules) {
        wrong.push(format!("failed to parse rules: {error}"));
    }
    several("policy", &wrong)?;
    Ok(Decided { batch: Change::PutAclPolicy(Box::new(policy)).into(), answer: stamp.index })
}

/// Creates a token, or changes the one that it names. Answers with the accessor.
///
/// # Errors
/// What is wrong with it.
pub fn put_token(
    state: &State,
    given: AclToken,
    ttl: Ttl,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<Arc<str>>, Refused> {
    let before = state.acl_token(&given.accessor_id);
    let mut token = given;
    match before {
        None if token.accessor_id.is_empty() => {
            (token.accessor_id, token.secret_id) = (ids().to_string().into(), ids().to_string().into());
            token.create_time = stamp.now.into();
        }
        // One that was made elsewhere, with both its ids.
        None if !token.secret_id.is_empty() => {
            if Uuid::try_parse(&token.accessor_id).is_err() || Uuid::try_parse(token.secret_id.reveal()).is_err() {
                return bad("accessor and secret of a token must be UUIDs");
            }
            if token.management() {
                return bad("only a client token may be made with given ids");
            }
            if state.acl_token_by_secret(token.secret_id.reveal()).is_some() {
                return bad("another token has this secret");
            }
            token.create_time = stamp.now.into();
        }
        None => return bad(format!("cannot find token {}", token.accessor_id)),
        Some(before) => {
            if token.global != before.global {
                return bad("cannot toggle global mode");
            }
            let same_time = token.expiration_time.is_unset() || token.expiration_time == before.expiration_time;
            let same_ttl = token.expiration_ttl == GoDuration::ZERO || token.expiration_ttl == before.expiration_ttl;
            if !same_time || !same_ttl {
                return bad("cannot change expiration time");
            }
            if !token.secret_id.is_empty() && token.secret_id != before.secret_id {
                return bad("cannot change the secret of a token");
            }
            token.secret_id = before.secret_id.clone();
            token.create_time = before.create_time.clone();
            token.expiration_time = before.expiration_time.clone();
            token.expiration_ttl = before.expiration_ttl;
        }
    }
    let mut wrong = Vec::new();
    match &*token.kind {
        token_type::CLIENT if token.policies.is_empty() && token.roles.is_empty() => {
            wrong.push("client token missing policies or roles".to_owned());
        }
        token_type::MANAGEMENT if !token.policies.is_empty() || !token.roles.is_empty() => {
            wrong.push("management token cannot be associated with policies or roles".to_owned());
        }
        token_type::CLIENT | token_type::MANAGEMENT => {}
        _ => wrong.push("token type must be client or management".to_owned()),
    }
    if token.name.len() > MAX_TOKEN_NAME {
        wrong.push("token name too long".to_owned());
    }
    if before.is_none() {
        wrong.extend(expires(&mut token, ttl, stamp.now));
    }
    several("token", &wrong)?;
    token.roles = links(state, &token.roles)?;
    let mut seen = BTreeSet::new();
    token.policies.retain(|policy| seen.insert(policy.clone()));
    let answer = token.accessor_id.clone();
    Ok(Decided { batch: Change::PutAclToken(Box::new(token)).into(), answer })
}

/// Sets when a new token ends; what is wrong with that.
fn expires(token: &mut AclToken, ttl: Ttl, now: TimestampNs) -> Option<String> {
    if token.expiration_ttl.nanos() < 0 {
        return Some(format!("token expiration TTL '{}' should not be negative", token.expiration_ttl));
    }
    if token.expiration_ttl != GoDuration::ZERO {
        if !token.expiration_time.is_unset() {
            return Some("token expiration TTL and expiration time cannot be used together".to_owned());
        }
        token.expiration_time = GoTime::from(now.saturating_add(token.expiration_ttl.nanos()));
    }
    if token.expiration_time.is_unset() {
        return None;
    }
    let Some(end) = token.expiration_time.ns() else {
        return Some("expiration time must be a time such as 2030-01-31T12:00:00Z".to_owned());
    };
    let (ahead, bound) = (GoDuration(end.saturating_sub(now)), |d: Duration| GoDuration::from(d));
    if ahead > bound(ttl.max) {
        return Some(format!("expiration time cannot be more than {} in the future (was {ahead})", bound(ttl.max)));
    }
    (ahead < bound(ttl.min))
        .then(|| format!("expiration time cannot be less than {} in the future (was {ahead})", bound(ttl.min)))
}

/// The roles that a token names, by id or name, each once.
fn links(state: &State, given: &[AclTokenRole]) -> Result<Vec<AclTokenRole>, Refused> {
    let mut links: Vec<AclTokenRole> = Vec::new();
    for link in given {
        let (found, called) = match &*link.id {
            "" => (state.acl_role_by_name(&link.name), &*link.name),
            id => (state.acl_role(id), id),
        };
        let Some(role) = found else { return bad(format!("cannot find role {called}")) };
        if links.iter().all(|known| known.id != role.id) {
            links.push(AclTokenRole { id: role.id.clone(), name: role.name.clone() });
        }
    }
    Ok(links)
}

/// Forgets tokens. Answers with the index.
///
/// # Errors
/// When one of them does not exist.
pub fn delete_tokens(state: &State, accessors: &[String], stamp: Stamp) -> Result<Decided<u64>, Refused> {
    let absent: Vec<&str> = accessors.iter().map(String::as_str).filter(|id| state.acl_token(id).is_none()).collect();
    if !absent.is_empty() {
        return bad(format!("Cannot delete nonexistent tokens: {}", absent.join(", ")));
    }
    let changes = accessors.iter().map(|id| Change::DeleteAclToken(id.as_str().into())).collect();
    Ok(Decided { batch: Batch::new(changes), answer: stamp.index })
}

/// Creates a role, or changes the one that it names. Answers with its id.
///
/// # Errors
/// What is wrong with it.
pub fn put_role(state: &State, role: AclRole, ids: &mut Ids<'_>) -> Result<Decided<Arc<str>>, Refused> {
    let mut wrong = Vec::new();
    if !named(&role.name) {
        wrong.push(format!("invalid name '{}'", role.name));
    }
    if role.description.len() > MAX_DESCRIPTION {
        wrong.push(format!("description longer than {MAX_DESCRIPTION}"));
    }
    if role.policies.is_empty() {
        wrong.push("at least one policy should be specified".to_owned());
    }
    several("role", &wrong)?;
    let mut role = role;
    if role.id.is_empty() {
        role.id = ids().to_string().into();
    } else if state.acl_role(&role.id).is_none() {
        return bad(format!("cannot find role {}", role.id));
    }
    if state.acl_role_by_name(&role.name).is_some_and(|other| other.id != role.id) {
        return bad(format!("role with name {} already exists", role.name));
    }
    if let Some(absent) = role.policies.iter().find(|policy| state.acl_policy(&policy.name).is_none()) {
        return bad(format!("cannot find policy {}", absent.name));
    }
    let each: BTreeSet<AclRolePolicy> = role.policies.drain(..).collect();
    role.policies = each.into_iter().collect();
    let answer = role.id.clone();
    Ok(Decided { batch: Change::PutAclRole(Box::new(role)).into(), answer })
}

/// Makes the first management token, or another one for who shows the index of the last bootstrap: whoever can write a
/// file of the leader. `secret`: the secret that it is to have; empty = a new one. Answers with the accessor.
///
/// # Errors
/// When that was done before and `reset` is not its index, or the secret is no UUID or taken.
pub fn bootstrap(
    state: &State,
    secret: &str,
    reset: Option<u64>,
    stamp: Stamp,
    ids: &mut Ids<'_>,
) -> Result<Decided<Arc<str>>, Refused> {
    if !secret.is_empty() && Uuid::try_parse(secret).is_err() {
        return bad("invalid acl token");
    }
    if let Some(index) = state.acl_bootstrap_index() {
        match reset {
            None => return bad(format!("ACL bootstrap already done (reset index: {index})")),
            Some(given) if given != index => {
                return bad(format!("Invalid bootstrap reset index (specified {given}, reset index: {index})"));
            }
            Some(_) => {}
        }
    }
    if state.acl_token_by_secret(secret).is_some() {
        return bad("another token has this secret");
    }
    let accessor: Arc<str> = ids().to_string().into();
    let secret_id = if secret.is_empty() { ids().to_string() } else { secret.to_owned() };
    let token = AclToken {
        accessor_id: accessor.clone(),
        secret_id: secret_id.into(),
        name: BOOTSTRAP_NAME.to_owned(),
        kind: token_type::MANAGEMENT.to_owned(),
        global: true,
        create_time: stamp.now.into(),
        ..AclToken::default()
    };
    let changes = vec![Change::PutAclToken(Box::new(token)), Change::AclBootstrapped];
    Ok(Decided { batch: Batch::new(changes), answer: accessor })
}

/// Makes a one-time token for the token of that accessor; answers with its secret.
#[must_use]
pub fn one_time(accessor: Arc<str>, stamp: Stamp, ids: &mut Ids<'_>) -> Decided<String> {
    let secret = ids().to_string();
    let valid = i64::try_from(ONE_TIME_VALID.as_nanos()).unwrap_or(i64::MAX);
    let token = OneTimeToken {
        one_time_secret_id: secret.clone().into(),
        accessor_id: accessor,
        expires_at: (stamp.now + valid).into(),
        ..OneTimeToken::default()
    };
    Decided { batch: Change::PutOneTimeToken(Box::new(token)).into(), answer: secret }
}

/// Exchanges a one-time token: it is gone, and its token is the answer. None = there is no such token, it has expired,
/// or the token that it stands for has.
#[must_use]
pub fn exchange(state: &State, secret: &str, now: TimestampNs) -> Option<Decided<Arc<AclToken>>> {
    let once = state.one_time_token(secret).filter(|once| !once.expired(now))?;
    let token = state.acl_token(&once.accessor_id).filter(|token| !token.expired(now))?.clone();
    Some(Decided { batch: Change::DeleteOneTimeToken(once.one_time_secret_id.digest()).into(), answer: token })
}

/// What is collected: tokens that have expired for longer than `threshold`, and one-time tokens that have expired. At
/// most `most` changes.
#[must_use]
pub fn collect(state: &State, threshold: Duration, now: TimestampNs, most: usize) -> Vec<Change> {
    let ago = now.saturating_sub(i64::try_from(threshold.as_nanos()).unwrap_or(i64::MAX));
    let tokens = state.acl_tokens_expired_at(ago).map(|token| Change::DeleteAclToken(token.accessor_id.clone()));
    let once = state.one_time_tokens().filter(|once| once.expired(now));
    tokens.chain(once.map(|once| Change::DeleteOneTimeToken(once.one_time_secret_id.digest()))).take(most).collect()
}

#[cfg(test)]
mod tests;
