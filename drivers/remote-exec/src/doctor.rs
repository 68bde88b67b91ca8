//! What tasks will need of the hosts, looked at for `drover driver doctor`.

use std::time::Duration;

use driver_sdk::Finding;
use executor_client::HostChannel;
use futures::future::join_all;

use crate::config::HostConfig;
use crate::host::Host;
use crate::pool::Pool;
use crate::whereabouts::{Leads, shared};
use crate::wire::SKEW_MS;

/// How long a host may take to answer, with the executor on the way over a thin line.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks at every host. What it leaves there is what a node leaves: the directory and the executor.
pub(crate) async fn examine(pool: &Pool) -> Vec<Finding> {
    let answers = join_all(pool.hosts.values().map(|host| host.channel_within(PATIENCE))).await;
    let leads = pool.leads_now();
    let mut findings = Vec::new();
    for (host, answer) in pool.hosts.values().zip(answers) {
        match answer {
            Ok(channel) => {
                let limits = pool.inventory.as_ref().and_then(|inventory| inventory.hosts.get(&host.name));
                findings.extend(reached(host, &channel, limits));
            }
            Err(why) => {
                let remedy = "follow the reason; `ssh` with the same user, key and port, as the user of the agent, \
                    tries it by hand";
                findings.push(Finding::fail(named(host), why, remedy));
            }
        }
        findings.extend(leads.get(&host.name).and_then(|leads| named_twice(&host.name, leads)));
    }
    findings
}

fn named(host: &Host) -> String {
    if host.name.is_empty() { "this machine".to_owned() } else { format!("host {}", host.name) }
}

/// What a host that has answered is like.
fn reached(host: &Host, channel: &HostChannel, limits: Option<&HostConfig>) -> Vec<Finding> {
    let (hello, what) = (channel.hello(), named(host));
    let found = format!(
        "{}: {} cores, {} MiB, directory {}, executor {}, cgroups: {}",
        host.describe(),
        hello.cores,
        hello.memory_mib,
        hello.root,
        hello.version,
        hello.cgroups
    );
    let mut findings = vec![Finding::pass(&what, found)];
    findings.extend(clock(&what, channel.clock_ahead_ms()));
    findings.extend(cgroups(&what, &hello.cgroups));
    findings.extend(limits.and_then(|limits| capacity(&what, limits, hello.memory_mib)));
    findings
}

fn clock(what: &str, ahead_ms: i64) -> Option<Finding> {
    let apart = ahead_ms.unsigned_abs();
    let side = if ahead_ms > 0 { "ahead" } else { "behind" };
    (apart > SKEW_MS).then(|| {
        Finding::warning(
            format!("clock of {what}"),
            format!("{} s {side}", apart / 1000),
            "let both machines keep time (chrony, systemd-timesyncd); until then times of tasks are those of the host",
        )
    })
}

/// Without cgroups a task has no limits there.
fn cgroups(what: &str, mode: &str) -> Option<Finding> {
    (mode == "off").then(|| {
        Finding::warning(
            format!("cgroups of {what}"),
            "not usable: memory and processors of tasks are not limited",
            "log in as root, or as a user with a delegated cgroup",
        )
    })
}

/// More memory than the machine has.
fn capacity(what: &str, limits: &HostConfig, memory_mib: u64) -> Option<Finding> {
    let offered = limits.capacity().memory_mib;
    (memory_mib > 0 && offered > memory_mib).then(|| {
        Finding::warning(
            format!("capacity of {what}"),
            format!("memory = {offered}, and the machine has {memory_mib} MiB"),
            "lower `capacity.memory` of the host",
        )
    })
}

fn named_twice(name: &str, leads: &Leads) -> Option<Finding> {
    let what = format!("name {name}");
    match leads {
        Leads::Own => None,
        Leads::Same(other) => {
            Some(Finding::warning(what, format!("is the same host as {other}"), "remove one of the two host blocks"))
        }
        Leads::Shared(other) => Some(Finding::fail(what, shared(name, other), "give each host a `dir` of its own")),
    }
}

#[cfg(test)]
mod tests {
    use driver_sdk::Verdict;

    use super::*;
    use crate::config::Capacity;

    #[test]
    fn what_tasks_will_lack_is_told_with_what_to_do() {
        assert_eq!((clock("host a", 4_000), clock("host a", -5_000)), (None, None));
        let late = clock("host a", -61_000).expect("a minute");
        assert_eq!((late.what.as_str(), late.found.as_str()), ("clock of host a", "61 s behind"));
        assert_eq!(cgroups("host a", "v2"), None);
        assert!(cgroups("host a", "off").is_some_and(|f| f.verdict == Verdict::Warning && !f.remedy.is_empty()));
        let limits =
            HostConfig { capacity: Some(Capacity { memory: 2048, ..Capacity::default() }), ..HostConfig::default() };
        assert_eq!((capacity("h", &limits, 4096), capacity("h", &limits, 0)), (None, None));
        assert!(capacity("h", &limits, 1024).is_some());
        assert_eq!(named_twice("a", &Leads::Own), None);
        assert!(named_twice("b", &Leads::Same("a".into())).is_some_and(|f| f.verdict == Verdict::Warning));
        assert!(named_twice("b", &Leads::Shared("a".into())).is_some_and(|f| f.verdict == Verdict::Fail));
    }
}
