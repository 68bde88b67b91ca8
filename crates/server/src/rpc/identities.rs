//! Tokens of workload identities, signed for the node that has the task.

use api::node_rpc::{IdentitiesSigned, SignIdentities, SignedIdentity};
use model::{AllocId, Allocation, JobId, Namespace, NodeId, identity_rules, task::Identity};
use serde::Serialize;
use uuid::Uuid;

use crate::shared::Shared;

/// What a token says, in the names that verifiers of Nomad's tokens look for.
#[derive(Serialize)]
struct Claims<'a> {
    aud: Audience<'a>,
    iat: i64,
    nbf: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    exp: Option<i64>,
    jti: Uuid,
    sub: String,
    nomad_namespace: &'a Namespace,
    nomad_job_id: &'a JobId,
    nomad_allocation_id: AllocId,
    nomad_task: &'a str,
}

/// One audience is a text, several are a list (RFC 7519, 4.1.3).
#[derive(Serialize)]
#[serde(untagged)]
enum Audience<'a> {
    One(&'a str),
    Many(&'a [String]),
}

const SECOND: i64 = 1_000_000_000;

/// Answers a node. It gets tokens of tasks that are its own, and of nobody else's.
pub(super) fn sign(shared: &Shared, node: NodeId, ask: SignIdentities) -> IdentitiesSigned {
    let seq = ask.seq;
    match signed(shared, node, &ask) {
        Ok(signed) => IdentitiesSigned { seq, signed, ..IdentitiesSigned::default() },
        Err((error, retry)) => {
            tracing::warn!(node = %node, alloc = ask.alloc_id, task = ask.task, error, "tokens are not given");
            IdentitiesSigned { seq, signed: Vec::new(), error, retry }
        }
    }
}

fn signed(shared: &Shared, node: NodeId, ask: &SignIdentities) -> Result<Vec<SignedIdentity>, (String, bool)> {
    let refused = |why: String| (why, false);
    let id: AllocId = ask.alloc_id.parse().map_err(|_| refused(format!("{:?} is no id of an allocation", ask.alloc_id)))?;
    let state = shared.published.load_full();
    let alloc = state.alloc(id).filter(|a| a.node_id == node);
    let alloc = alloc.ok_or_else(|| refused(format!("allocation {} does not belong to this node", id.short())))?;
    let job = alloc.job.as_ref().ok_or_else(|| refused(format!("allocation {} has no job", id.short())))?;
    let task = job.group(&alloc.task_group).and_then(|g| g.task(&ask.task));
    let task = task.ok_or_else(|| refused(format!("allocation {} has no task {:?}", id.short(), ask.task)))?;
    let now = crate::clock::now_ns();
    ask.identities
        .iter()
        .map(|name| {
            let identity = identity_rules::identities(task).find(|i| i.name == *name);
            let identity = identity.ok_or_else(|| refused(format!("task {:?} has no identity {name:?}", ask.task)))?;
            let claims = claims(&shared.config.region, alloc, &ask.task, identity, now, Uuid::new_v4());
            let expires_ns = claims.exp.map_or(0, |exp| exp.saturating_mul(SECOND));
            // A full disk or another passing failure: keys are in memory, so that this is none of the node's making.
            let token = shared.keyring.sign(&claims).map_err(|e| (e.to_string(), true))?;
            Ok(SignedIdentity { identity: name.clone(), token, issued_ns: claims.iat * SECOND, expires_ns })
        })
        .collect()
}

fn claims<'a>(region: &str, alloc: &'a Allocation, task: &'a str, identity: &'a Identity, now: i64, jti: Uuid) -> Claims<'a> {
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
        let identity = Identity { name: "aws".into(), audience: vec!["sts".into()], ttl: GoDuration::from_secs(60), ..Identity::default() };
        let of = |identity: &Identity| {
            let claims = claims("global", &alloc, "t", identity, 1_000 * SECOND + 5, Uuid::from_u128(1));
            serde_json::to_value(claims).expect("JSON")
        };
        let mut wanted = json!({
            "aud": "sts", "iat": 1000, "nbf": 1000, "exp": 1061, "jti": "00000000-0000-0000-0000-000000000001", "sub": "global:ns:web:g:t:aws",
            "nomad_namespace": "ns", "nomad_job_id": "web", "nomad_allocation_id": "00000000-0000-0000-0000-000000000007", "nomad_task": "t",
        });
        assert_eq!(of(&identity), wanted);
        let many = Identity { audience: vec!["a".into(), "b".into()], ttl: GoDuration::ZERO, ..identity };
        wanted["aud"] = json!(["a", "b"]);
        wanted.as_object_mut().expect("object").remove("exp");
        assert_eq!(of(&many), wanted);
    }
}
