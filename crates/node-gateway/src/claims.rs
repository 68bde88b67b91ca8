//! The claims of a workload identity's token.

use std::collections::BTreeMap;

use model::{
    AllocId, Allocation, Job, Namespace, TimestampNs,
    task::{Identity, Vault},
};
use serde::Serialize;
use uuid::Uuid;

/// The claims, under the names that verifiers of Nomad's tokens expect.
#[derive(Debug, Serialize)]
pub struct Claims<'a> {
    aud: Audience<'a>,
    pub(crate) iat: i64,
    nbf: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exp: Option<i64>,
    jti: Uuid,
    sub: String,
    nomad_namespace: &'a Namespace,
    nomad_job_id: &'a str,
    nomad_allocation_id: AllocId,
    nomad_task: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    vault_namespace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vault_role: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    extra_claims: BTreeMap<String, String>,
}

/// One audience is a text, several are a list (RFC 7519, 4.1.3).
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Audience<'a> {
    One(&'a str),
    Many(&'a [String]),
}

pub(crate) const SECOND: TimestampNs = 1_000_000_000;

/// The claims of a task's identity; `vault` is the block of the task where the token is one for Vault. What a job has
/// dispatched or launched carries the id of that job, so that a rule of a verifier holds for all of them.
pub(crate) fn of<'a>(
    region: &str,
    (alloc, job): (&'a Allocation, &'a Job),
    (task, vault): (&'a str, Option<&'a Vault>),
    identity: &'a Identity,
    extra_claims: BTreeMap<String, String>,
    (now, jti): (TimestampNs, Uuid),
) -> Claims<'a> {
    let iat = now / SECOND;
    let group = &alloc.task_group;
    let job_id = if job.parent_id.is_empty() { alloc.job_id.as_str() } else { &job.parent_id };
    Claims {
        aud: match identity.audience.as_slice() {
            [one] => Audience::One(one),
            many => Audience::Many(many),
        },
        iat,
        nbf: iat,
        exp: (identity.ttl.nanos() > 0).then(|| (now.saturating_add(identity.ttl.nanos()) + SECOND - 1) / SECOND),
        jti,
        sub: format!("{region}:{}:{job_id}:{group}:{task}:{}", alloc.namespace, identity.name),
        nomad_namespace: &alloc.namespace,
        nomad_job_id: job_id,
        nomad_allocation_id: alloc.id,
        nomad_task: task,
        vault_namespace: vault.and_then(|vault| vault.namespace.as_deref()).filter(|text| !text.is_empty()),
        vault_role: vault.map(|vault| vault.role.as_str()).filter(|role| !role.is_empty()),
        extra_claims,
    }
}

#[cfg(test)]
mod tests {
    use model::GoDuration;
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_say_who_the_task_is() {
        let alloc = Allocation {
            id: AllocId(Uuid::from_u128(7)),
            namespace: "ns".into(),
            job_id: "web".into(),
            task_group: "g".into(),
            ..Allocation::default()
        };
        let identity = Identity {
            name: "aws".into(),
            audience: vec!["sts".into()],
            ttl: GoDuration::from_secs(60),
            ..Identity::default()
        };
        let job = Job::default();
        let with = |job: &Job, vault: Option<&Vault>, extra: BTreeMap<String, String>, identity: &Identity| {
            let stamp = (1_000 * SECOND + 5, Uuid::from_u128(1));
            let claims = super::of("global", (&alloc, job), ("t", vault), identity, extra, stamp);
            serde_json::to_value(claims).expect("JSON")
        };
        let said = |identity: &Identity| with(&job, None, BTreeMap::new(), identity);
        let mut wanted = json!({
            "aud": "sts", "iat": 1000, "nbf": 1000, "exp": 1061, "jti": "00000000-0000-0000-0000-000000000001",
            "sub": "global:ns:web:g:t:aws",
            "nomad_namespace": "ns", "nomad_job_id": "web",
            "nomad_allocation_id": "00000000-0000-0000-0000-000000000007", "nomad_task": "t",
        });
        assert_eq!(said(&identity), wanted);
        let many = Identity { audience: vec!["a".into(), "b".into()], ttl: GoDuration::ZERO, ..identity };
        wanted["aud"] = json!(["a", "b"]);
        wanted.as_object_mut().expect("object").remove("exp");
        assert_eq!(said(&many), wanted);
        // A child of a periodic or parameterized job, with claims of its namespace.
        let child = Job { parent_id: "nightly".into(), ..Job::default() };
        wanted["nomad_job_id"] = json!("nightly");
        wanted["sub"] = json!("global:ns:nightly:g:t:aws");
        wanted["extra_claims"] = json!({"team": "blue"});
        let team = BTreeMap::from([("team".into(), "blue".into())]);
        assert_eq!(with(&child, None, team.clone(), &many), wanted);
        // One for Vault says what the task asks of it.
        wanted["vault_role"] = json!("web");
        let vault = Vault { role: "web".into(), namespace: Some(String::new()), ..Vault::default() };
        assert_eq!(with(&child, Some(&vault), team.clone(), &many), wanted);
        wanted["vault_namespace"] = json!("ns1");
        let vault = Vault { namespace: Some("ns1".into()), ..vault };
        assert_eq!(with(&child, Some(&vault), team, &many), wanted);
    }
}
