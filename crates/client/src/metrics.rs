//! Figures of the node for `/v1/metrics`, with Nomad's names: what its allocations take, what the machine does, and
//! what each task does. The last two only if the configuration wants them, and measured only while somebody asks.

use std::{collections::BTreeMap, sync::Arc};

use api::shapes::Gauge;
use driver_host::proto::driver::{CpuUsage, MemoryUsage, TaskResourceUsage};
use model::{ClientStatus, Node, TaskRunState, resources::AllocatedTask};
use serde_json::Value;

use crate::{alloc::AllocView, allocs, handle::ClientHandle, stats};

type Labels = BTreeMap<String, String>;

/// All of them.
pub(crate) async fn of_node(handle: &ClientHandle) -> Vec<Gauge> {
    let (node, config) = (handle.node(), handle.config());
    let labels = labels_of(&node);
    let views: Vec<Arc<AllocView>> =
        allocs::handles(&handle.inner.allocs).into_iter().map(|(_, alloc)| alloc.view.borrow().clone()).collect();
    let mut all = of_allocs(&labels, &node, &views, host::clock::now_ns());
    if config.publish_node_metrics {
        let at = handle.clone();
        let sampled = blocking::spawn(move || host::stats::host(&at.config().alloc_dir, at.inner.cpu.core_mhz()));
        all.extend(sampled.await.map(|sampled| of_host(&labels, &sampled)).unwrap_or_default());
    }
    if config.publish_allocation_metrics {
        let tasks = views.iter().flat_map(|view| view.runs.keys().map(move |task| (view, task)));
        let asked = tasks.map(|(view, task)| {
            let labels = &labels;
            async move {
                let sample = stats::of_local(handle, view, task).await?;
                let given = view.alloc.resources.tasks.get(&**task)?;
                Some(of_task(labels_in(labels, view, Some(task)), given, &sample.agg_resource_usage?))
            }
        });
        all.extend(futures::future::join_all(asked).await.into_iter().flatten().flatten());
    }
    all
}

fn labels_of(node: &Node) -> Labels {
    let class = if node.class.is_empty() { "none" } else { &node.class };
    let pairs = [("node_id", node.id.to_string()), ("datacenter", node.datacenter.clone())];
    let more = [("node_class", class.to_owned()), ("node_pool", node.pool.clone())];
    pairs.into_iter().chain(more).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn labels_in(of_node: &Labels, view: &AllocView, task: Option<&str>) -> Labels {
    let alloc = &view.alloc;
    let pairs = [
        ("namespace", alloc.namespace.to_string()),
        ("job", alloc.job_id.to_string()),
        ("task_group", alloc.task_group.to_string()),
        ("alloc_id", alloc.id.to_string()),
    ];
    let task = task.map(|task| ("task", task.to_owned()));
    let own = pairs.into_iter().chain(task).map(|(name, value)| (name.to_owned(), value));
    of_node.clone().into_iter().chain(own).collect()
}

#[allow(clippy::cast_precision_loss, reason = "metrics are read as floats; beyond 2^53 the last digits do not matter")]
fn real(n: i64) -> f64 {
    n as f64
}

fn whole(n: u64) -> f64 {
    real(i64::try_from(n).unwrap_or(i64::MAX))
}

fn count(n: usize) -> f64 {
    real(i64::try_from(n).unwrap_or(i64::MAX))
}

/// What the allocations take, and what of it is left; how many there are.
fn of_allocs(labels: &Labels, node: &Node, views: &[Arc<AllocView>], now: i64) -> Vec<Gauge> {
    let gauge = |name: String, value: f64| Gauge { name, value, labels: labels.clone() };
    let over = |view: &AllocView| view.alloc.terminal() || view.update.client_status.terminal();
    let (mut cpu, mut memory, mut max_memory, mut disk) = (0, 0, 0, 0);
    for view in views.iter().filter(|view| !over(view)) {
        let resources = &view.alloc.resources;
        let usage = resources.usage();
        (cpu, memory, disk) = (cpu + usage.cpu, memory + usage.memory_mb, disk + usage.disk_mb);
        let most = |task: &AllocatedTask| task.memory.memory_max_mb.max(task.memory.memory_mb);
        max_memory += resources.tasks.values().filter(|task| !task.remote).map(most).sum::<i64>();
    }
    let (has, keeps) = (&node.resources, &node.reserved);
    let mut all: Vec<Gauge> = [("cpu", cpu), ("memory", memory), ("max_memory", max_memory), ("disk", disk)]
        .map(|(name, n)| gauge(format!("nomad.client.allocated.{name}"), real(n)))
        .into();
    let left = [
        ("cpu", has.cpu.cpu_shares - keeps.cpu.cpu_shares - cpu),
        ("memory", has.memory.memory_mb - keeps.memory.memory_mb - memory),
        ("disk", has.disk.disk_mb - keeps.disk.disk_mb - disk),
    ];
    all.extend(left.map(|(name, n)| gauge(format!("nomad.client.unallocated.{name}"), real(n))));
    let of = |is: &dyn Fn(&AllocView) -> bool| count(views.iter().filter(|view| is(view)).count());
    let pending = |view: &AllocView| !over(view) && view.update.client_status != ClientStatus::Running;
    let running = |view: &AllocView| !over(view) && view.update.client_status == ClientStatus::Running;
    for (name, n) in [("pending", of(&pending)), ("running", of(&running)), ("terminal", of(&over))] {
        all.push(gauge(format!("nomad.client.allocations.{name}"), n));
    }
    let states = || views.iter().flat_map(|view| view.update.task_states.values());
    for (name, state) in
        [("pending", TaskRunState::Pending), ("running", TaskRunState::Running), ("dead", TaskRunState::Dead)]
    {
        let n = states().filter(|task| task.state == state).count();
        all.push(gauge(format!("nomad.client.tasks.{name}"), count(n)));
    }
    for view in views.iter().filter(|view| !over(view)) {
        let group = view.job.group(&view.alloc.task_group);
        let Some(longest) = group.and_then(|group| group.max_run_duration) else { continue };
        let left = (longest.nanos() - (now - view.alloc.create_time)).max(0);
        for (name, ns) in [("configured_seconds", longest.nanos()), ("remaining_seconds", left)] {
            let (name, value) = (format!("nomad.client.allocs.max_run_duration.{name}"), real(ns / 1_000_000_000));
            all.push(Gauge { name, value, labels: labels_in(labels, view, None) });
        }
    }
    all
}

/// What the machine does: the API's form of its statistics.
fn of_host(labels: &Labels, sampled: &Value) -> Vec<Gauge> {
    let mut all = Vec::new();
    let mut add = |name: String, value: &Value, label: Option<(&str, &Value)>| {
        let label = label.and_then(|(key, of)| Some((key.to_owned(), of.as_str()?.to_owned())));
        let labels = labels.clone().into_iter().chain(label).collect();
        all.extend(value.as_f64().map(|value| Gauge { name, value, labels }));
    };
    for processor in sampled["CPU"].as_array().into_iter().flatten() {
        for (name, key) in [
            ("total", "Total"),
            ("total_percent", "TotalPercent"),
            ("total_ticks", "TotalTicks"),
            ("user", "User"),
            ("system", "System"),
            ("idle", "Idle"),
        ] {
            add(format!("nomad.client.host.cpu.{name}"), &processor[key], Some(("cpu", &processor["CPU"])));
        }
    }
    for (name, key) in [("total", "Total"), ("available", "Available"), ("used", "Used"), ("free", "Free")] {
        add(format!("nomad.client.host.memory.{name}"), &sampled["Memory"][key], None);
    }
    for disk in sampled["DiskStats"].as_array().into_iter().flatten() {
        for (name, key) in [
            ("size", "Size"),
            ("used", "Used"),
            ("available", "Available"),
            ("used_percent", "UsedPercent"),
            ("inodes_percent", "InodesUsedPercent"),
        ] {
            add(format!("nomad.client.host.disk.{name}"), &disk[key], Some(("disk", &disk["Device"])));
        }
    }
    add("nomad.client.uptime".to_owned(), &sampled["Uptime"], None);
    all
}

/// What a task does: what its driver has measured of it, in the driver's units, and what it was given.
fn of_task(labels: Labels, given: &AllocatedTask, usage: &TaskResourceUsage) -> Vec<Gauge> {
    use driver_host::proto::driver::{cpu_usage::Fields as Cpu, memory_usage::Fields as Memory};
    const MIB: i64 = 1024 * 1024;
    let gauge = |name: String, value: f64| Gauge { name, value, labels: labels.clone() };
    let (cpu, memory) = (usage.cpu.clone().unwrap_or_default(), usage.memory.clone().unwrap_or_default());
    let of_cpu = |field: Cpu, cpu: &CpuUsage| match field {
        Cpu::SystemMode => ("system", cpu.system_mode),
        Cpu::UserMode => ("user", cpu.user_mode),
        Cpu::TotalTicks => ("total_ticks", cpu.total_ticks),
        Cpu::ThrottledPeriods => ("throttled_periods", whole(cpu.throttled_periods)),
        Cpu::ThrottledTime => ("throttled_time", whole(cpu.throttled_time)),
        Cpu::Percent => ("total_percent", cpu.percent),
    };
    let of_memory = |field: Memory, memory: &MemoryUsage| match field {
        Memory::Rss => ("rss", memory.rss),
        Memory::Cache => ("cache", memory.cache),
        Memory::MaxUsage => ("max_usage", memory.max_usage),
        Memory::KernelUsage => ("kernel_usage", memory.kernel_usage),
        Memory::KernelMaxUsage => ("kernel_max_usage", memory.kernel_max_usage),
        Memory::Usage => ("usage", memory.usage),
        Memory::Swap => ("swap", memory.swap),
    };
    let measured = cpu.measured_fields().map(|field| of_cpu(field, &cpu));
    let mut all: Vec<Gauge> = measured
        .chain([("allocated", real(given.cpu.cpu_shares))])
        .map(|(name, value)| gauge(format!("nomad.client.allocs.cpu.{name}"), value))
        .collect();
    let measured = memory.measured_fields().map(|field| of_memory(field, &memory));
    let measured = measured.map(|(name, bytes)| (name, whole(bytes)));
    let most = given.memory.memory_max_mb;
    let given = [("allocated", given.memory.memory_mb * MIB), ("max_allocated", most * MIB)];
    let given = given.into_iter().filter(|(name, _)| *name == "allocated" || most > 0);
    let given = given.map(|(name, bytes)| (name, real(bytes)));
    all.extend(measured.chain(given).map(|(name, value)| gauge(format!("nomad.client.allocs.memory.{name}"), value)));
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels() -> Labels {
        labels_of(&Node { datacenter: "dc1".into(), pool: "default".into(), ..Node::default() })
    }

    fn values(gauges: &[Gauge]) -> BTreeMap<&str, f64> {
        gauges.iter().map(|gauge| (gauge.name.as_str(), gauge.value)).collect()
    }

    #[test]
    fn a_machine_is_told_by_processor_and_disk() {
        let sampled = json!({
            "CPU": [{"CPU": "cpu0", "TotalPercent": 25.0, "Idle": 75.0}, {"CPU": "cpu1", "TotalPercent": 50.0}],
            "Memory": {"Total": 1024, "Used": 24},
            "DiskStats": [{"Device": "/dev/vda", "Size": 10, "UsedPercent": 50.0}, null],
            "Uptime": 7,
        });
        let all = of_host(&labels(), &sampled);
        let percent = |cpu: &str| {
            let of = |gauge: &&Gauge| gauge.name.ends_with("cpu.total_percent") && gauge.labels["cpu"] == cpu;
            all.iter().find(of).map(|gauge| gauge.value)
        };
        assert_eq!((percent("cpu0"), percent("cpu1"), percent("cpu2")), (Some(25.0), Some(50.0), None));
        let disk = all.iter().find(|gauge| gauge.name == "nomad.client.host.disk.size").expect("a disk");
        assert_eq!((disk.labels["disk"].as_str(), disk.labels["node_class"].as_str()), ("/dev/vda", "none"));
        let of = values(&all);
        assert_eq!((of["nomad.client.host.memory.used"], of["nomad.client.uptime"]), (24.0, 7.0));
        assert!(!of.contains_key("nomad.client.host.memory.free"), "what is not known is not told as 0");
    }

    #[test]
    fn a_task_is_told_what_its_driver_measures() {
        use driver_host::proto::driver::{cpu_usage::Fields as Cpu, memory_usage::Fields as Memory};
        let mut given = AllocatedTask::default();
        (given.cpu.cpu_shares, given.memory.memory_mb) = (50, 32);
        let usage = TaskResourceUsage {
            cpu: Some(CpuUsage { percent: 1.5, measured_fields: vec![Cpu::Percent.into()], ..CpuUsage::default() }),
            memory: Some(MemoryUsage {
                rss: 4096,
                measured_fields: vec![Memory::Rss.into()],
                ..MemoryUsage::default()
            }),
        };
        let all = of_task(labels(), &given, &usage);
        let expected = BTreeMap::from([
            ("nomad.client.allocs.cpu.total_percent", 1.5),
            ("nomad.client.allocs.cpu.allocated", 50.0),
            ("nomad.client.allocs.memory.rss", 4096.0),
            ("nomad.client.allocs.memory.allocated", 33_554_432.0),
        ]);
        assert_eq!(values(&all), expected);
        given.memory.memory_max_mb = 64;
        let all = of_task(labels(), &given, &usage);
        assert_eq!(values(&all)["nomad.client.allocs.memory.max_allocated"], 67_108_864.0);
    }
}
