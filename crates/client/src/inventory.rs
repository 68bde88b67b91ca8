//! What a node that holds tells the servers: all that it has, as it is.

use api::node_rpc::{Allocs, FromNode, FromNodeMessage, Inventory, RemoteOrders, to_json};
use model::{AllocId, Allocation, DynamicVolume};
use remote_manager::RemoteManager;
use tokio::sync::mpsc;

use crate::alloc::{AllocHandle, AllocView};

/// Allocations of one message.
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

/// Says it in pieces. The session may end meanwhile: the next one begins anew.
pub(crate) async fn tell(
    remote: RemoteManager,
    volumes: Vec<DynamicVolume>,
    allocs: Vec<(AllocId, AllocHandle)>,
    to: mpsc::Sender<FromNode>,
) {
    let orders =
        RemoteOrders { orders_json: remote.inventory().await.iter().map(to_json).collect(), ..RemoteOrders::default() };
    let mut pieces: Vec<Inventory> = allocs
        .chunks(PIECE)
        .map(|chunk| {
            let mut allocs = Allocs::default();
            for (_, handle) in chunk {
                let view = handle.view.borrow();
                allocs.allocs_json.push(to_json(&as_it_is(&view)));
                // As it came: the proof is of these very bytes, of which this release may not know each field.
                allocs.jobs_json.push(view.sent.0.json.clone());
                allocs.proofs.push(view.sent.1.as_deref().unwrap_or_default().to_owned());
                allocs.job_indexes.push(view.job.job_modify_index);
            }
            Inventory { allocs: Some(allocs), more: true, ..Inventory::default() }
        })
        .collect();
    let host_volumes_json = volumes.iter().map(to_json).collect();
    pieces.push(Inventory { orders: Some(orders), host_volumes_json, ..Inventory::default() });
    for piece in pieces {
        if to.send(FromNodeMessage::Inventory(piece).into()).await.is_err() {
            return;
        }
    }
}
