//! Responses of a node's client endpoints: files, log frames, resource usage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An entry of a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct FileInfo {
    /// Name.
    pub name: String,
    /// It is a directory.
    pub is_dir: bool,
    /// Bytes.
    pub size: i64,
    /// As `ls` shows it, `-rw-r--r--`.
    pub file_mode: String,
    /// RFC 3339.
    pub mod_time: String,
    /// Media type, for files.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub content_type: String,
}

/// A piece of a stream of a file or log. All fields empty: a heartbeat.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct StreamFrame {
    /// Bytes.
    #[serde(with = "super::base64_bytes", skip_serializing_if = "Vec::is_empty")]
    pub data: Vec<u8>,
    /// The file, relative to the allocation's directory.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file: String,
    /// `file deleted` or `file truncated`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub file_event: String,
    /// Position after the data.
    #[serde(skip_serializing_if = "is_zero")]
    pub offset: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(n: &i64) -> bool {
    *n == 0
}

impl StreamFrame {
    /// Nothing but a sign of life?
    #[must_use]
    pub fn is_heartbeat(&self) -> bool {
        *self == Self::default()
    }
}

/// `GET /v1/client/allocation/:id/stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct AllocResourceUsage {
    /// Sum.
    pub resource_usage: Option<ResourceUsage>,
    /// By task.
    pub tasks: BTreeMap<String, TaskResourceUsage>,
    /// Unix ns.
    pub timestamp: i64,
}

/// Use of one task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct TaskResourceUsage {
    /// Sum.
    pub resource_usage: Option<ResourceUsage>,
    /// Unix ns.
    pub timestamp: i64,
    /// By process.
    pub pids: BTreeMap<String, ResourceUsage>,
}

/// Memory and processor use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct ResourceUsage {
    /// Memory.
    pub memory_stats: Option<MemoryStats>,
    /// Processor.
    pub cpu_stats: Option<CpuStats>,
    /// Devices.
    pub device_stats: Vec<serde_json::Value>,
}

/// Memory use in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStats {
    /// Resident.
    #[serde(rename = "RSS")]
    pub rss: u64,
    /// Page cache.
    #[serde(rename = "Cache")]
    pub cache: u64,
    /// Swap.
    #[serde(rename = "Swap")]
    pub swap: u64,
    /// Mapped files.
    #[serde(rename = "MappedFile")]
    pub mapped_file: u64,
    /// As the kernel counts it.
    #[serde(rename = "Usage")]
    pub usage: u64,
    /// Highest so far.
    #[serde(rename = "MaxUsage")]
    pub max_usage: u64,
    /// Kernel memory.
    #[serde(rename = "KernelUsage")]
    pub kernel_usage: u64,
    /// Highest kernel memory.
    #[serde(rename = "KernelMaxUsage")]
    pub kernel_max_usage: u64,
    /// Which of these were measured.
    #[serde(rename = "Measured")]
    pub measured: Vec<String>,
}

/// Processor use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct CpuStats {
    /// Percent of a core, in the kernel.
    pub system_mode: f64,
    /// Percent of a core, outside.
    pub user_mode: f64,
    /// MHz.
    pub total_ticks: f64,
    /// Throttled periods.
    pub throttled_periods: u64,
    /// Throttled nanoseconds.
    pub throttled_time: u64,
    /// Percent of a core.
    pub percent: f64,
    /// Which of these were measured.
    pub measured: Vec<String>,
}

/// `GET /v1/client/stats`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostStats {
    /// Memory.
    #[serde(rename = "Memory")]
    pub memory: Option<HostMemory>,
    /// By core.
    #[serde(rename = "CPU")]
    pub cpu: Vec<HostCpu>,
    /// By file system.
    #[serde(rename = "DiskStats")]
    pub disk_stats: Vec<HostDisk>,
    /// The file system of the allocations.
    #[serde(rename = "AllocDirStats")]
    pub alloc_dir_stats: Option<HostDisk>,
    /// Devices.
    #[serde(rename = "DeviceStats")]
    pub device_stats: Vec<serde_json::Value>,
    /// Seconds.
    #[serde(rename = "Uptime")]
    pub uptime: u64,
    /// MHz.
    #[serde(rename = "CPUTicksConsumed")]
    pub cpu_ticks_consumed: f64,
    /// Unix ns.
    #[serde(rename = "Timestamp")]
    pub timestamp: i64,
}

/// Memory of a node in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostMemory {
    /// All.
    pub total: u64,
    /// Could be given to a process.
    pub available: u64,
    /// In use.
    pub used: u64,
    /// Not in use.
    pub free: u64,
}

/// A core of a node; percent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostCpu {
    /// Name.
    #[serde(rename = "CPU")]
    pub cpu: String,
    /// Outside the kernel.
    #[serde(rename = "User")]
    pub user: f64,
    /// In the kernel.
    #[serde(rename = "System")]
    pub system: f64,
    /// Idle.
    #[serde(rename = "Idle")]
    pub idle: f64,
    /// Busy.
    #[serde(rename = "TotalPercent")]
    pub total_percent: f64,
    /// Busy, in MHz.
    #[serde(rename = "TotalTicks")]
    pub total_ticks: f64,
}

/// A file system of a node in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct HostDisk {
    /// Device.
    pub device: String,
    /// Where it is mounted.
    pub mountpoint: String,
    /// All.
    pub size: u64,
    /// In use.
    pub used: u64,
    /// Free.
    pub available: u64,
    /// Percent.
    pub used_percent: f64,
    /// Percent.
    pub inodes_used_percent: f64,
}
