//! The claims of a workload identity's token.

use model::{AllocId, Allocation, JobId, Namespace, TimestampNs, task::Identity};
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
    nomad_job_id: &'a JobId,
    nomad_allocation_id: AllocId,
    nomad_task: &'a str,
}

/// One audience is a text, several are a list (RFC 7519, 4.1.3).
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Audience<'a> {
    One(&'a str),
    Many(&'a [String]),
}

pub(crate) const SECOND: TimestampNs = 1_000_000_000;

/// The claims of a task's identity.
pub(crate) fn of<'a>(
    region: &str,
    alloc: &'a Allocation,
    task: &'a str,
    identity: &'a Identity,
    now: TimestampNs,
    jti: Uuid,
) -> Claims<'a> {
    let iat = now / SECOND;
    let group = &alloc.task_group;
    Claims {
        aud: match identity.audience.as_slice() {
            [one] => Audience::One(one),
            many => Audience::Many(many),
        },
        iat,
        nbf: iat,
        exp: (identity.ttl.nanos() > 0).then(|| (now.saturating_add(identity.ttl.nanos()) + SECOND - 1) / SECOND),
        jti,
        sub: format!("{region}:{}:{}:{group}:{task}:{}", alloc.namespace, alloc.job_id, identity.name),
        nomad_namespace: &alloc.namespace,
        nomad_job_id: &alloc.job_id,
        nomad_allocation_id: alloc.id,
        nomad_task: task,
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
        let said = |identity: &Identity| {
            let claims = super::of("global", &alloc, "t", identity, 1_000 * SECOND + 5, Uuid::from_u128(1));
            serde_json::to_value(claims).expect("JSON")
        };
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
    }
}
