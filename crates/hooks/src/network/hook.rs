//! The network of an allocation, for the tasks that share it.

use std::sync::Arc;

use host::clock::now_ns;
use lifecycle::alloc::{events, machine::Event};

use super::{AllocNetwork, Networks, check::Verdict};
use crate::{
    hook::{Given, Hook, Prepared, Starting},
    place::TaskPlace,
};

impl Hook for Networks {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, given: &'a mut Given) -> Prepared<'a> {
        Box::pin(async {
            let (network, spec) = (&starting.place.network, starting.spec);
            // The end of the allocation, or the next agent, ends a half-made network.
            given.network =
                starting.unless_interrupted(network.ensure(self, spec.alloc, spec.job, spec.group)).await??;
            Ok(())
        })
    }
}

/// Tells a task of a former agent what became of its network, and restarts the task where that helps. Cancel safe.
pub async fn watch(networks: &Networks, place: &TaskPlace, run: &str) {
    match place.network.inspect(networks).await {
        Verdict::Sound => {}
        Verdict::Mended(why) => {
            let said = format!("The network of the group was broken and has been joined again: {why}");
            place.tell(events::network(now_ns(), &said));
        }
        Verdict::Lost(why) => {
            let why = format!("The network of the group is lost: {why}");
            // The loop may have ended.
            let _ = place.inbox.send(Event::DataChanged { task: place.task.clone(), run: run.to_owned(), why });
        }
    }
}

/// Ends the network of an allocation that has no running task.
pub async fn end(networks: &Networks, network: &Arc<AllocNetwork>) {
    if let Err(error) = network.end(networks).await {
        tracing::warn!(error, "the network of an allocation stays, the next sweep tries again");
    }
}
