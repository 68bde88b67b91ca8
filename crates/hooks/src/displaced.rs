//! Waits for the end of what was displaced: only then its room and its ports are free.

use crate::{
    hook::{Given, Hook, Prepared, Starting},
    present::Present,
};

/// Lets an allocation start when those that were displaced for it have ended on this node.
pub struct Displaced {
    /// The allocations of this node.
    pub present: Box<dyn Present>,
}

impl Hook for Displaced {
    fn before_start<'a>(&'a self, starting: &'a Starting<'a>, _: &'a mut Given) -> Prepared<'a> {
        Box::pin(async move {
            for displaced in starting.place.alloc.preempted() {
                // One that is not here has left nothing here.
                let Some(end) = self.present.end_of(*displaced).filter(|end| !end.over) else { continue };
                let what = format!("Waiting for the displaced allocation {} to end", displaced.short());
                starting.after(end, &what).await?;
            }
            Ok(())
        })
    }
}
