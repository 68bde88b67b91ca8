//! What a node says to have, and whether these servers have told it so.

use std::{collections::HashMap, sync::Arc};

use api::node_rpc::{Allocs, Inventory, from_json};
use control::takeover::{Claimed, Has, Standing};
use model::{
    Allocation, ClusterId, DynamicVolume, Job, NodeId, RemoteOrder,
    proof::{self, Proof, Told},
};

use crate::{error::ServerError, keyring::Keyring};

/// Reads an inventory of a node, with what each part is worth.
pub(super) fn read(
    pieces: Vec<Inventory>,
    keyring: &Keyring,
    cluster: ClusterId,
    node: NodeId,
) -> Result<Has, ServerError> {
    let wrong = |error: api::node_rpc::Unreadable| ServerError::invalid(error.to_string());
    let standing =
        |proof: &str, statement: &dyn Fn(Told) -> Vec<u8>| standing(keyring, (cluster, node), proof, statement);
    let mut has = Has::default();
    // Allocations share the job that they have in common.
    let mut jobs: HashMap<proof::Digest, Arc<Job>> = HashMap::new();
    for Inventory { allocs, orders, host_volumes_json, .. } in pieces {
        for volume in host_volumes_json {
            let volume: DynamicVolume = from_json("a host volume", &volume).map_err(wrong)?;
            let proof = volume.proof.as_deref().unwrap_or_default();
            let standing = standing(proof, &|told| proof::of_volume(told, &volume));
            has.volumes.push(Claimed { what: volume, standing });
        }
        let Allocs { allocs_json, jobs_json, proofs, .. } = allocs.unwrap_or_default();
        // A node of an earlier release says none.
        let proofs = proofs.iter().map(String::as_str).chain(std::iter::repeat(""));
        for ((alloc, text), proof) in allocs_json.iter().zip(&jobs_json).zip(proofs) {
            let mut alloc: Allocation = from_json("an allocation", alloc).map_err(wrong)?;
            let (digest, referred) = proof::text_or_reference(text);
            let job = match jobs.get(&digest) {
                Some(known) => known.clone(),
                None if referred => {
                    return Err(ServerError::invalid("a job is referred to that was not said".to_owned()));
                }
                None => {
                    let job = Arc::new(from_json::<Job>("a job", text).map_err(wrong)?);
                    jobs.insert(digest, job.clone());
                    job
                }
            };
            let standing = standing(proof, &|told| proof::of_alloc(told, &alloc, &digest));
            alloc.job = Some(job);
            has.allocs.push(Claimed { what: alloc, standing });
        }
        for order in orders.unwrap_or_default().orders_json {
            let order: RemoteOrder = from_json("a remote order", &order).map_err(wrong)?;
            let proof = order.proof.as_deref().unwrap_or_default();
            let standing = standing(proof, &|told| proof::of_order(told, &order));
            has.orders.push(Claimed { what: order, standing });
        }
    }
    Ok(has)
}

fn standing(
    keyring: &Keyring,
    (cluster, node): (ClusterId, NodeId),
    proof: &str,
    statement: &dyn Fn(Told) -> Vec<u8>,
) -> Standing {
    if proof.is_empty() {
        return Standing::Without;
    }
    let Ok(Proof { key, at, mac }) = proof.parse() else { return Standing::OfSomethingElse };
    match keyring.proven(key, &statement(Told { cluster, node, at }), &mac) {
        None => Standing::UnknownKey(key),
        Some(false) => Standing::OfSomethingElse,
        Some(true) => Standing::Proven(at),
    }
}
