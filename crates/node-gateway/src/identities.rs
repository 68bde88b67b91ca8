//! Tokens of workload identities, signed for the node that has the task.

use api::node_rpc::{IdentitiesSigned, SignIdentities, SignedIdentity};
use control::extra_claims::{self, Bearer};
use model::{AllocId, Allocation, NodeId, Task, TimestampNs, identity_rules, vault_rules};
use state::State;

use crate::{
    claims::{self, SECOND},
    gateway::Gateway,
};

/// Answers a node. It gets tokens of its own tasks only.
pub(crate) fn sign(gateway: &Gateway, node: NodeId, ask: SignIdentities) -> IdentitiesSigned {
    let seq = ask.seq;
    match signed(gateway, node, &ask) {
        Ok(signed) => IdentitiesSigned { seq, signed, ..IdentitiesSigned::default() },
        Err((error, retry)) => {
            tracing::warn!(node = %node, alloc = ask.alloc_id, task = ask.task, error, "tokens are not given");
            IdentitiesSigned { seq, signed: Vec::new(), error, retry }
        }
    }
}

/// How long the tasks of an allocation that is to stop get tokens beyond its own delays and kill timeouts, in
/// nanoseconds: they may need one while they end.
const STOPS_WITHIN: i64 = 3600 * SECOND;

/// Whether tasks of the allocation may have tokens now; otherwise why not, and whether that passes.
fn may_have(state: &State, alloc: &Allocation, now: TimestampNs) -> Result<(), (String, bool)> {
    let id = alloc.id.short();
    if state.cluster().recovery.as_ref().is_some_and(|recovery| recovery.by_hand) {
        // They know it from a node alone, which proves nothing to servers that began without their keys.
        let why = format!(
            "the servers began empty and have allocation {id} from its node: no token before they know \
            more (drover operator recover)"
        );
        return Err((why, true));
    }
    if alloc.client_terminal() {
        return Err((format!("allocation {id} has ended"), false));
    }
    let group = alloc.job.as_ref().and_then(|job| job.group(&alloc.task_group));
    let own =
        |task: &Task| task.shutdown_delay.nanos().saturating_add(task.kill_timeout.map_or(0, |most| most.nanos()));
    let longest = group.into_iter().flat_map(|group| &group.tasks).map(own).max().unwrap_or_default();
    if alloc.server_terminal() && now.saturating_sub(alloc.modify_time) > STOPS_WITHIN.saturating_add(longest) {
        return Err((format!("allocation {id} should have stopped more than an hour ago"), false));
    }
    Ok(())
}

fn signed(gateway: &Gateway, node: NodeId, ask: &SignIdentities) -> Result<Vec<SignedIdentity>, (String, bool)> {
    let refused = |why: String| (why, false);
    let id: AllocId =
        ask.alloc_id.parse().map_err(|_| refused(format!("{:?} is no id of an allocation", ask.alloc_id)))?;
    let state = gateway.backend.published();
    let alloc = state.alloc(id).filter(|a| a.node_id == node);
    let alloc = alloc.ok_or_else(|| refused(format!("allocation {} does not belong to this node", id.short())))?;
    let now = gateway.backend.now();
    may_have(&state, alloc, now)?;
    let job = alloc.job.as_ref().ok_or_else(|| refused(format!("allocation {} has no job", id.short())))?;
    let task = job.group(&alloc.task_group).and_then(|g| g.task(&ask.task));
    let task = task.ok_or_else(|| refused(format!("allocation {} has no task {:?}", id.short(), ask.task)))?;
    let namespace = state.namespace(&alloc.namespace);
    let bearer = Bearer {
        region: &gateway.settings.region,
        job,
        alloc,
        task: &ask.task,
        node: state.node(node).map(|node| &**node),
        vault: None,
    };
    ask.identities
        .iter()
        .map(|name| {
            let identity = identity_rules::identities(task).find(|i| i.name == *name);
            let identity = identity.ok_or_else(|| refused(format!("task {:?} has no identity {name:?}", ask.task)))?;
            let vault = task.vault.as_ref().filter(|_| *name == vault_rules::IDENTITY);
            let bearer = Bearer { vault, ..bearer };
            let mut extra =
                namespace.map(|namespace| extra_claims::of(namespace, identity, &bearer)).unwrap_or_default();
            if vault.is_some() {
                extra.extend(extra_claims::with_values(gateway.settings.vault_claims.iter(), &bearer));
            }
            let stamp = (now, gateway.backend.new_id());
            let region = &gateway.settings.region;
            let claims = claims::of(region, (alloc, job), (&ask.task, vault), identity, extra, stamp);
            let expires_ns = claims.exp.map_or(0, |exp| exp.saturating_mul(SECOND));
            // A full disk or another temporary failure: keys are in memory, so the node is not at fault.
            let token = gateway.backend.sign(&claims).map_err(|why| (why, true))?;
            Ok(SignedIdentity { identity: name.clone(), token, issued_ns: claims.iat * SECOND, expires_ns })
        })
        .collect()
}
