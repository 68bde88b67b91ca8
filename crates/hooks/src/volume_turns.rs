//! Waits for the end of what wrote to a dynamic host volume: one allocation takes over from another there.

use host::{clock::now_ns, node_env::NodeEnv};
use lifecycle::alloc::events;
use model::volume::{MULTI_WRITER, host_requests, source_of};

use crate::{
    hook::{Given, Hook, Prepared, Starting},
    sticky::Present,
};

/// Lets a task write to a dynamic volume when those that are to stop have ended there. The servers count what they have
/// told to stop as gone: a replacement may be here before its predecessor has ended.
pub struct VolumeTurns {
    /// Knows the volumes of the node.
    pub env: NodeEnv,
    /// The allocations of this node.
    pub present: Box<dyn Present>,
}

impl Hook for VolumeTurns {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        Box::pin(async move {
            let alloc = starting.spec.alloc;
            let writes = host_requests(starting.spec.group).filter(|r| !r.read_only && r.access_mode != MULTI_WRITER);
            for request in writes {
                let name = source_of(request, alloc.index());
                let volumes = &self.env.node().host_volumes;
                if volumes.get(&*name).is_none_or(|volume| volume.id.is_nil()) {
                    continue;
                }
                for (former, end) in self.present.leaving_writers(&alloc.namespace, &name, alloc.id) {
                    let what =
                        format!("Waiting for allocation {} to end, which writes to volume {name}", former.short());
                    starting.place.tell(events::setup(now_ns(), &what));
                    starting.unless_interrupted(end.wait).await?;
                }
            }
            Ok(())
        })
    }
}
