//! What `drover node status NODE` says of one node.

use std::{collections::BTreeSet, process::ExitCode, time::Duration};

use anyhow::Result;
use api::{call, shapes::HostStats};
use futures::StreamExt as _;
use model::{Allocation, ClientStatus, Eligibility, GoDuration, Node, NodeStatus};

use super::{
    Shape, alloc_table, device_stats,
    node::{Status, one_line},
    stats,
};
use crate::{
    conn::Conn,
    output::{self, Table, lower},
    when,
};

/// Allocations whose use is asked for at once.
const AT_ONCE: usize = 16;
/// A node that does not answer keeps nobody waiting for longer.
const ANSWERS: Duration = Duration::from_secs(5);

/// Shows a node.
pub(crate) async fn show(conn: &Conn, node: &Node, args: &Status) -> Result<ExitCode> {
    let shape = &args.shape;
    // Only the node itself knows; it may be away.
    let host = match node.status {
        NodeStatus::Ready if !args.short => asked(conn.ask(call::node_stats().with("node_id", node.id))).await,
        _ => None,
    };
    output::pairs(&facts(node, host.as_ref(), shape.verbose && !args.short));
    if node.status != NodeStatus::Ready && !node.status_description.is_empty() {
        output::line(&format!("Why it is {}: {}", lower(&node.status), node.status_description));
    }
    if node.eligibility == Eligibility::Ineligible && node.status == NodeStatus::Ready && node.drain.is_none() {
        output::line("The scheduler does not place on this node: `drover node eligibility -enable` changes that.");
    }
    if args.short {
        allocations(&conn.ask(call::node_allocations(node.id)).await?, shape);
        return Ok(ExitCode::SUCCESS);
    }
    if shape.verbose && !node.host_volumes.is_empty() {
        output::heading("Host Volumes");
        host_volumes(node, shape).print();
    }
    if shape.verbose {
        output::heading("Drivers");
        drivers(node).print();
    } else if node.drivers.values().any(|driver| driver.remote.is_some()) {
        output::heading("Remote Drivers");
        remote_drivers(node).print();
    }
    let allocs = conn.ask(call::node_allocations(node.id)).await?;
    if !node.resources.devices.is_empty() {
        devices(node, &allocs, shape.verbose);
    }
    if !node.events.is_empty() {
        output::heading("Node Events");
        events(node, shape.verbose).print();
    }
    output::heading("Allocated Resources");
    allocated(node, &allocs).print();
    if let Some(host) = &host {
        let (ticks, memory) = used(conn, &allocs).await;
        let cpu = node.resources.cpu.cpu_shares;
        let whole = output::mib(node.resources.memory.memory_mb);
        output::heading("Allocation Resource Utilization");
        let mut table = Table::new(["CPU", "Memory"]);
        table.row([format!("{:.0}/{cpu} MHz", ticks.floor()), format!("{}/{whole}", output::size(memory))]);
        table.print();
        output::heading("Host Resource Utilization");
        utilization(node, host).print();
        if !host.device_stats.is_empty() {
            output::heading("Device Resource Utilization");
            device_stats::summaries(&host.device_stats).iter().for_each(|text| output::line(text));
        }
    }
    if let Some(host) = host.as_ref().filter(|_| args.stats) {
        stats::print_host(host);
        if !host.device_stats.is_empty() {
            output::heading("Device Stats");
            device_stats::print(&host.device_stats);
        }
    }
    allocations(&allocs, shape);
    if shape.verbose {
        output::heading("Attributes");
        let rows: Vec<(&str, String)> = node.attributes.iter().map(|(k, v)| (&**k, v.to_string())).collect();
        output::pairs(&rows);
        output::heading("Meta");
        let rows: Vec<(&str, String)> = node.meta.iter().map(|(k, v)| (&**k, v.to_string())).collect();
        output::pairs(&rows);
    }
    if let Some(drain) = &node.drain {
        output::heading("Drain");
        output::pairs(&[
            ("Started", when::whole(&drain.started_at)),
            ("Force Deadline", when::stamp(drain.force_deadline_ns)),
        ]);
    }
    Ok(ExitCode::SUCCESS)
}

fn allocations(allocs: &[Allocation], shape: &Shape) {
    output::heading("Allocations");
    let table = alloc_table::of_node(allocs, shape);
    if table.is_empty() { output::line("No allocations placed") } else { table.print() }
}

/// What a node has answered in time.
async fn asked<T>(answer: impl Future<Output = Result<T>>) -> Option<T> {
    tokio::time::timeout(ANSWERS, answer).await.ok()?.ok()
}

/// Names with commas between them.
fn names<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.collect::<Vec<_>>().join(",")
}

fn facts(node: &Node, host: Option<&HostStats>, verbose: bool) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("ID", node.id.to_string()),
        ("Name", node.name.to_string()),
        ("Node Pool", node.pool.clone()),
        ("Class", node.class.clone()),
        ("DC", node.datacenter.clone()),
        ("Drain", node.drain.is_some().to_string()),
        ("Eligibility", lower(&node.eligibility)),
        ("Status", lower(&node.status)),
        ("CSI Controllers", String::new()),
        ("CSI Drivers", String::new()),
    ];
    let seconds = |host: &HostStats| GoDuration::from_secs(i64::try_from(host.uptime).unwrap_or(0)).to_string();
    rows.extend(host.map(|host| ("Uptime", seconds(host))));
    if !verbose {
        let detected = node.drivers.iter().filter(|(_, driver)| driver.detected).map(|(name, driver)| {
            let unwell = if driver.healthy { "" } else { "(unhealthy)" };
            format!("{name}{unwell}")
        });
        rows.extend([
            ("Host Volumes", names(node.host_volumes.keys().map(|name| &**name))),
            ("Host Networks", names(node.host_networks.keys().map(|name| &**name))),
            ("CSI Volumes", String::new()),
            ("Driver Status", detected.collect::<Vec<_>>().join(",")),
        ]);
    }
    rows
}

fn host_volumes(node: &Node, shape: &Shape) -> Table {
    let mut table = Table::new(["Name", "ID", "Read Only", "Source"]);
    for (name, v) in &node.host_volumes {
        let id = if v.id.is_nil() { "<none>".to_owned() } else { shape.id(v.id) };
        table.row([name.clone(), id, v.read_only.to_string(), v.path.clone()]);
    }
    table
}

fn drivers(node: &Node) -> Table {
    let mut table = Table::new(["Driver", "Detected", "Healthy", "Message", "Time", "Remote Provider"]);
    for (name, d) in &node.drivers {
        table.row([
            name.clone(),
            d.detected.to_string(),
            d.healthy.to_string(),
            one_line(&d.health_description, true),
            when::whole(&d.update_time),
            d.remote.as_ref().map_or_else(|| "-".to_owned(), |r| r.provider.clone()),
        ]);
    }
    table
}

fn remote_drivers(node: &Node) -> Table {
    let mut table = Table::new(["Driver", "Healthy", "Provider", "Message"]);
    for (name, d) in &node.drivers {
        if let Some(remote) = &d.remote {
            let message = one_line(&d.health_description, false);
            table.row([name.clone(), d.healthy.to_string(), remote.provider.clone(), message]);
        }
    }
    table
}

fn events(node: &Node, verbose: bool) -> Table {
    let details: &[&str] = if verbose { &["Details"] } else { &[] };
    let mut table = Table::new([&["Time", "Subsystem", "Message"], details].concat());
    for e in node.events.iter().rev() {
        let details = e.details.iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ");
        let facts = [when::whole(&e.timestamp), e.subsystem.clone(), e.message.clone()];
        table.row(facts.into_iter().chain(verbose.then_some(details)));
    }
    table
}

fn allocated(node: &Node, allocs: &[Allocation]) -> Table {
    let used = allocs
        .iter()
        .filter(|a| a.occupies())
        .map(|a| a.resources.usage())
        .fold((0, 0, 0), |s, u| (s.0 + u.cpu, s.1 + u.memory_mb, s.2 + u.disk_mb));
    let mut table = Table::new(["CPU", "Memory", "Disk"]);
    table.row([
        format!("{}/{} MHz", used.0, node.resources.cpu.cpu_shares),
        format!("{}/{}", output::mib(used.1), output::mib(node.resources.memory.memory_mb)),
        format!("{}/{}", output::mib(used.2), output::mib(node.resources.disk.disk_mb)),
    ]);
    table
}

/// What the running allocations use: MHz and bytes.
async fn used(conn: &Conn, allocs: &[Allocation]) -> (f64, u64) {
    let running = allocs.iter().filter(|a| a.client_status == ClientStatus::Running);
    let asked = running.map(|a| asked(conn.ask(call::alloc_stats(a.id))));
    let all: Vec<_> = futures::stream::iter(asked).buffer_unordered(AT_ONCE).collect().await;
    let used = all.iter().flatten().filter_map(|stats| stats.resource_usage.as_ref());
    used.fold((0.0, 0), |(ticks, bytes), used| {
        let cpu = used.cpu_stats.as_ref().map_or(0.0, |cpu| cpu.total_ticks);
        let memory = used.memory_stats.as_ref().map_or(0, stats::memory_in_use);
        (ticks + cpu, bytes + memory)
    })
}

fn utilization(node: &Node, host: &HostStats) -> Table {
    let memory = host.memory.unwrap_or_default();
    let disk = host.alloc_dir_stats.clone().unwrap_or_default();
    let mut table = Table::new(["CPU", "Memory", "Disk"]);
    table.row([
        format!("{:.0}/{} MHz", host.cpu_ticks_consumed.floor(), node.resources.cpu.cpu_shares),
        format!("{}/{}", output::size(memory.used), output::size(memory.total)),
        format!("{}/{}", output::size(disk.used), output::size(disk.size)),
    ]);
    table
}

/// The node's devices, and which of them tasks have.
fn devices(node: &Node, allocs: &[Allocation], verbose: bool) {
    let given: BTreeSet<(String, &str)> = allocs
        .iter()
        .filter(|a| a.occupies())
        .flat_map(|a| a.resources.tasks.values().flat_map(|t| &t.devices))
        .flat_map(|d| d.device_ids.iter().map(|id| (d.id(), id.as_str())))
        .collect();
    output::heading("Devices");
    let mut table = Table::new(["Device", "ID", "Status", "Message"]);
    for group in &node.resources.devices {
        for device in &group.instances {
            let status = match (given.contains(&(group.id(), device.id.as_str())), device.healthy) {
                (true, true) => "in use",
                (true, false) => "in use, unhealthy",
                (false, true) => "free",
                (false, false) => "unhealthy",
            };
            let message = one_line(&device.health_description, verbose);
            table.row([group.id(), device.id.clone(), status.to_owned(), message]);
        }
    }
    table.print();
    if verbose {
        output::heading("Device Attributes");
        for group in &node.resources.devices {
            for (name, value) in &group.attributes {
                output::line(&format!("{}: {name} = {value}", group.id()));
            }
        }
    }
}
