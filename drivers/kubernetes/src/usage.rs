//! What a pod uses, as the metrics API of its cluster has measured it.

use std::time::SystemTime;

use driver_sdk::{CpuUsage, MemoryUsage, TaskUsage, Usage};
use jiff::Timestamp;
use serde::Deserialize;

use crate::marks::CONTAINER;

/// A `PodMetrics` of `metrics.k8s.io/v1beta1`: averages over a window that ends at `timestamp`.
#[derive(Debug, Deserialize)]
pub(crate) struct PodMetrics {
    timestamp: Timestamp,
    containers: Vec<ContainerMetrics>,
}

#[derive(Debug, Deserialize)]
struct ContainerMetrics {
    name: String,
    usage: Measured,
}

/// Quantities as Kubernetes writes them: `12345678n` processors, `5120Ki` bytes.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Measured {
    cpu: String,
    memory: String,
}

/// The sample of the task's container. `None`: it was not measured yet.
///
/// Memory is the working set: what the kernel cannot give back at once, and what a limit is held against.
pub(crate) fn sample(pod: &PodMetrics, cpu_mhz: u64) -> Option<TaskUsage> {
    let usage = &pod.containers.iter().find(|container| container.name == CONTAINER)?.usage;
    let cores = quantity(&usage.cpu);
    let cpu = CpuUsage {
        percent: cores.map(|cores| cores * 100.0),
        total_ticks: cores.map(|cores| cores * cpu_mhz as f64),
        ..CpuUsage::default()
    };
    let memory = MemoryUsage { usage: quantity(&usage.memory).map(|bytes| bytes as u64), ..MemoryUsage::default() };
    Some(TaskUsage { at: Some(SystemTime::from(pod.timestamp)), total: Usage { cpu, memory }, ..TaskUsage::default() })
}

/// The value of a quantity; `None` for what is none, or less than nothing.
/// Source: the API conventions of Kubernetes, `resource.Quantity`.
fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: &[(&str, f64)] = &[
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
    ];
    let suffix = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, factor)));
    let (number, factor) = suffix.unwrap_or((text, &1.0));
    // Rust also reads words such as "inf" as numbers.
    let digits = number.starts_with(|first: char| first.is_ascii_digit() || "+.".contains(first));
    let value = number.parse::<f64>().ok().filter(|value| digits && value.is_finite())?;
    Some(value * factor)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_read_in_every_form() {
        for (text, value) in [
            ("0", 0.0),
            ("250m", 0.25),
            ("1500000000n", 1.5),
            ("12u", 0.000_012),
            ("2", 2.0),
            ("0.5", 0.5),
            ("5120Ki", 5_242_880.0),
            ("1Gi", 1_073_741_824.0),
            ("128974848", 128_974_848.0),
            ("129e6", 129_000_000.0),
            ("129M", 129_000_000.0),
            ("3E", 3e18),
            ("1Ei", 1_152_921_504_606_846_976.0),
        ] {
            let read = quantity(text).unwrap_or(-1.0);
            assert!((read - value).abs() <= value * 1e-9, "{text}: {read}");
        }
        for text in ["", "n", "Ki", "inf", "nan", "-1", "1x", "1 Ki", "1KiB", "9e999"] {
            assert_eq!(quantity(text), None, "{text:?}");
        }
    }

    #[test]
    fn only_the_container_of_the_task_counts() {
        let pod = |containers| -> PodMetrics {
            let pod = json!({"timestamp": "2026-01-02T03:04:05Z", "window": "15.1s", "containers": containers});
            serde_json::from_value(pod).expect("read")
        };
        let sidecar = json!({"name": "sidecar", "usage": {"cpu": "3", "memory": "1Gi"}});
        assert_eq!(sample(&pod(json!([sidecar])), 2500), None);
        let task = json!({"name": CONTAINER, "usage": {"cpu": "500m", "memory": "2Mi"}});
        let used = sample(&pod(json!([sidecar, task])), 2500).expect("a sample");
        assert_eq!((used.total.cpu.percent, used.total.cpu.total_ticks), (Some(50.0), Some(1250.0)));
        assert_eq!(used.total.memory.usage, Some(2_097_152));
        assert_eq!(
            used.at.and_then(|at| Timestamp::try_from(at).ok()).map(|at| at.to_string()).as_deref(),
            Some("2026-01-02T03:04:05Z")
        );
        // What was not measured is not nothing.
        let unmeasured = sample(&pod(json!([{"name": CONTAINER, "usage": {}}])), 2500).expect("a sample");
        assert_eq!((unmeasured.total.cpu.percent, unmeasured.total.memory.usage), (None, None));
    }
}
