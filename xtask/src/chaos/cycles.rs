//! Start, stop and purge, again and again, with kills in between.

use std::time::Duration;

use anyhow::Result;

use super::{
    fault::Fault,
    world::{Spec, World, driver},
};

pub(super) const FAULTS: &[Fault] = &[Fault {
    name: "cycles",
    what: "100 cycles of start, stop and purge with kills of agent, plugins and executors in between",
    would_show: "processes, cgroups, mounts and sockets that pile up",
    run: cycles,
}];

fn cycles(world: &mut World, n: usize) -> Result<()> {
    for cycle in 0..world.cycles {
        let at = n * world.cycles + cycle;
        let mut spec =
            Spec::new(if at.is_multiple_of(3) { "exit 4" } else { "exec sleep 98765" }).driver(driver(at)).restarts(2);
        spec.kill_timeout = Duration::from_millis(500);
        if at % 11 == 7 {
            // No such program: a start that fails half-way.
            spec.config = serde_json::json!({"work_dir": "/no/such/directory"});
        }
        world.submit(&spec)?;
        std::thread::sleep(Duration::from_millis(u64::try_from(at * 53 % 170)?));
        match at % 7 {
            1 => world.kill_plugins()?,
            3 => world.kill_executors()?,
            5 => {
                world.node.crash()?;
                world.restart_node()?;
            }
            _ => {}
        }
        world.stop_all()?;
        world.rest()?;
    }
    Ok(())
}
