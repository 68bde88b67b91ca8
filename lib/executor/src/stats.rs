//! Resource use of the workload's tree.

use executor_proto::{PidStats, StatsReply};

use crate::launch::Surroundings;
use crate::process::{self, ProcessStat};
use crate::sys;

/// Measures now. `executor` is this process; without a cgroup its descendants are the tree.
pub(crate) fn measure(surroundings: &Surroundings, executor: i32) -> StatsReply {
    let paths = &surroundings.paths;
    let mut processes: Vec<ProcessStat> = if paths.is_empty() {
        process::descendants_of(executor)
    } else {
        cgroup::members(paths).into_iter().filter_map(ProcessStat::of).collect()
    };
    if let Some(holder) = &surroundings.holder {
        processes.retain(|p| p.pid != holder.pid);
    }
    let tick = process::tick_ns();
    let page = rustix::param::page_size() as u64;
    let pids: Vec<PidStats> = processes
        .iter()
        .map(|p| PidStats {
            pid: p.pid,
            user_ns: p.user_ticks * tick,
            system_ns: p.system_ticks * tick,
            rss: p.rss_pages * page,
        })
        .collect();
    let counted = cgroup::counters(paths);
    // Without a counting cgroup: the live processes, their reaped children, and the orphans that we adopted.
    let (reaped_user, reaped_system) = sys::reaped_cpu_ns();
    let user: u64 = processes.iter().map(|p| (p.user_ticks + p.children_user_ticks) * tick).sum();
    let system: u64 = processes.iter().map(|p| (p.system_ticks + p.children_system_ticks) * tick).sum();
    StatsReply {
        at_ns: process::now_ns(),
        user_ns: counted.user_ns.unwrap_or(user + reaped_user),
        system_ns: counted.system_ns.unwrap_or(system + reaped_system),
        rss: pids.iter().map(|p| p.rss).sum(),
        memory_usage: counted.memory_usage,
        memory_peak: counted.memory_peak,
        memory_cache: counted.memory_cache,
        memory_swap: counted.memory_swap,
        throttled_periods: counted.throttled_periods,
        throttled_ns: counted.throttled_ns,
        pids,
    }
}
