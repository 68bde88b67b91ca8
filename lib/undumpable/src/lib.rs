//! Processes whose memory holds secrets: the kernel writes no image of it when they crash, and shows it to nobody who
//! may not trace. It forgets this with the next program, so what such a process starts is as always.

use std::io;

use rustix::{
    process::{DumpableBehavior, set_dumpable_behavior},
    thread::{CapabilitySet, capabilities},
};

/// From now on this process leaves no image of its memory.
///
/// # Errors
/// When the kernel refuses; everything is as it was then.
pub fn this_process() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The same for a process that its agent finds by its environment, which then only those may read who may trace. Where
/// this process may not, its agent may not either: an image is the smaller evil than a process that nobody finds.
///
/// # Errors
/// As [`this_process`].
pub fn this_process_if_it_stays_found() -> io::Result<()> {
    let traces = capabilities(None)?.effective.contains(CapabilitySet::SYS_PTRACE);
    if traces { this_process() } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    /// All in one test: it is a state of the whole process.
    #[test]
    fn a_process_leaves_no_image_where_it_stays_found() {
        let traces = capabilities(None).expect("capabilities").effective.contains(CapabilitySet::SYS_PTRACE);
        let before = dumpable_behavior().expect("the behaviour");
        this_process_if_it_stays_found().expect("set");
        let wanted = if traces { DumpableBehavior::NotDumpable } else { before };
        assert_eq!(dumpable_behavior().expect("the behaviour"), wanted);
        this_process().expect("set");
        assert_eq!(dumpable_behavior().expect("the behaviour"), DumpableBehavior::NotDumpable);
    }
}
