//! What a node that holds tells the servers: all that it has, as it is.

use api::node_rpc::{Allocs, FromNode, FromNodeMessage, Inventory, PIECE_BYTES, RemoteOrders, to_json};
use model::{AllocId, Allocation, DynamicVolume, StoreIndex};
use remote_manager::RemoteManager;
use tokio::sync::mpsc;

use crate::alloc::{AllocHandle, AllocView};

/// Allocations of one message at most. Not fewer without need: servers bound how many messages they hear.
const PIECE: usize = 200;

/// The allocation as the servers sent it, with what has become of it here.
fn as_it_is(view: &AllocView) -> Allocation {
    let update = &view.update;
    let mut alloc = Allocation {
        client_status: update.client_status,
        client_description: update.client_description.clone(),
        job: None,
        metrics: None,
        ..(*view.alloc).clone()
    };
    alloc.task_states = update.task_states.clone();
    if update.deployment_status.is_some() {
        alloc.deployment_status.clone_from(&update.deployment_status);
    }
    alloc
}

/// What is said of an allocation.
struct Said {
    alloc_json: Vec<u8>,
    /// As it came: the proof is of these very bytes, of which this release may not know each field.
    job_json: Vec<u8>,
    proof: String,
    job_index: StoreIndex,
}

impl Said {
    fn of(view: &AllocView) -> Self {
        Self {
            alloc_json: to_json(&as_it_is(view)),
            job_json: view.sent.0.json.clone(),
            proof: view.sent.1.as_deref().unwrap_or_default().to_owned(),
            job_index: view.job.job_modify_index,
        }
    }
}

/// The messages that say all of it. Each is made when it is asked for: a job may have several MiB, and is said with
/// each of its allocations.
fn pieces(
    allocs: impl IntoIterator<Item = Said>,
    orders: impl IntoIterator<Item = Vec<u8>>,
    host_volumes_json: Vec<Vec<u8>>,
) -> impl Iterator<Item = Inventory> {
    let (mut allocs, mut orders) = (allocs.into_iter().peekable(), orders.into_iter().peekable());
    let mut volumes = Some(host_volumes_json);
    std::iter::from_fn(move || {
        let mut bytes = 0;
        if allocs.peek().is_some() {
            let mut piece = Allocs::default();
            while bytes < PIECE_BYTES
                && piece.allocs_json.len() < PIECE
                && let Some(said) = allocs.next()
            {
                bytes += said.alloc_json.len() + said.job_json.len();
                piece.allocs_json.push(said.alloc_json);
                piece.jobs_json.push(said.job_json);
                piece.proofs.push(said.proof);
                piece.job_indexes.push(said.job_index);
            }
            return Some(Inventory { allocs: Some(piece), more: true, ..Inventory::default() });
        }
        let mut piece = RemoteOrders::default();
        while bytes < PIECE_BYTES
            && let Some(order) = orders.next()
        {
            bytes += order.len();
            piece.orders_json.push(order);
        }
        let more = orders.peek().is_some();
        // With the last ones.
        let host_volumes_json = if more { Vec::new() } else { volumes.take()? };
        Some(Inventory { orders: Some(piece), host_volumes_json, more, ..Inventory::default() })
    })
}

/// Says it in pieces. The session may end meanwhile: the next one begins anew.
pub(crate) async fn tell(
    remote: RemoteManager,
    volumes: Vec<DynamicVolume>,
    allocs: Vec<(AllocId, AllocHandle)>,
    to: mpsc::Sender<FromNode>,
) {
    let orders = remote.inventory().await;
    let allocs = allocs.into_iter().map(|(_, handle)| Said::of(&handle.view.borrow()));
    for piece in pieces(allocs, orders.into_iter().map(|order| to_json(&order)), volumes.iter().map(to_json).collect())
    {
        if to.send(FromNodeMessage::Inventory(piece).into()).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_is_longer_than_a_message_and_nothing_is_left_out() {
        let alloc = |bytes: usize| Said {
            alloc_json: vec![b'a'; 10],
            job_json: vec![b'j'; bytes],
            proof: "proven".to_owned(),
            job_index: 7,
        };
        let large = PIECE_BYTES * 2 / 3;
        let said = (0..3).map(|_| alloc(large)).chain((0..PIECE + 50).map(|_| alloc(10)));
        let pieces: Vec<_> = pieces(said, (0..3).map(|_| vec![b'o'; large]), vec![vec![b'v']]).collect();
        let lengths = |of: &Inventory| {
            let allocs = of.allocs.as_ref().map_or(0, |allocs| {
                assert_eq!(allocs.jobs_json.len(), allocs.allocs_json.len());
                assert_eq!(
                    (allocs.proofs.len(), allocs.job_indexes.len()),
                    (allocs.jobs_json.len(), allocs.jobs_json.len())
                );
                allocs.allocs_json.len()
            });
            (
                allocs,
                of.orders.as_ref().map_or(0, |orders| orders.orders_json.len()),
                of.host_volumes_json.len(),
                of.more,
            )
        };
        assert_eq!(
            pieces.iter().map(lengths).collect::<Vec<_>>(),
            [(2, 0, 0, true), (PIECE, 0, 0, true), (51, 0, 0, true), (0, 2, 0, true), (0, 1, 1, false),]
        );
    }
}
