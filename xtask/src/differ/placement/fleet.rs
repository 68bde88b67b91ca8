//! Nodes that are described only. They differ in all that the placement looks at, so that few scores are tied.

use serde_json::{Value, json};

/// So many there are.
pub(super) const NODES: u64 = 40;
/// Those that are set aside after they have come.
pub(super) const SET_ASIDE: [u64; 2] = [30, 31];

pub(super) fn id(n: u64) -> String {
    format!("00000000-0000-4000-8000-{n:012}")
}

pub(super) fn name(n: u64) -> String {
    format!("n{n:02}")
}

/// All of them, as both systems describe nodes.
pub(super) fn nodes() -> Vec<Value> {
    (0..NODES).map(node).collect()
}

fn one_of(n: u64, texts: &[&'static str]) -> &'static str {
    let at = usize::try_from(n).unwrap_or(0) % texts.len();
    texts[at]
}

fn node(n: u64) -> Value {
    let cores = 4 + n % 5;
    let mhz = 700 + 31 * ((n * 7) % NODES);
    let mut attributes = json!({
        "kernel.name": "linux",
        "kernel.version": format!("{}.{}.0", 4 + n % 3, n % 10),
        "cpu.arch": if n.is_multiple_of(3) { "arm64" } else { "amd64" },
        "os.version": format!("{}.04", 20 + n % 4),
        "tags": one_of(n, &["a,b", "b,c", "a,c,d", "d"]),
    });
    if n % 4 != 1 {
        attributes["storage.kind"] = json!(if n % 8 < 4 { "ssd" } else { "disk" });
    }
    let mut drivers = json!({});
    // One has no driver, one has a driver that is not well.
    if n != 5 {
        attributes["driver.raw_exec"] = json!("1");
        drivers["raw_exec"] = json!({"Attributes": {"driver.raw_exec": "1"}, "Detected": true, "Healthy": n != 6,
                "HealthDescription": ""});
    }
    let address = format!("10.0.0.{}", n + 1);
    let reserved = if n % 6 == 4 { json!({"MemoryMB": 400}) } else { json!({"MemoryMB": 0}) };
    let reserved_ports = if n % 6 == 4 { "22,8000-8100" } else { "" };
    json!({
        "ID": id(n),
        "SecretID": format!("11111111-0000-4000-8000-{n:012}"),
        "Datacenter": format!("dc{}", 1 + n % 2),
        "Name": name(n),
        "NodeClass": one_of(n, &["", "small", "large"]),
        "NodePool": if n % 10 == 9 { "side" } else { "default" },
        "Attributes": attributes,
        "Meta": {"number": n.to_string(), "rack": format!("r{}", n % 8), "slice": (n / 5).to_string(),
            "room": format!("m{}", n % 2)},
        "Drivers": drivers,
        "NodeResources": {
            "Cpu": {"CpuShares": cores * mhz, "TotalCpuCores": cores,
                "ReservableCpuCores": (0..cores).collect::<Vec<_>>()},
            "Memory": {"MemoryMB": 4_000 + 173 * ((n * 11) % NODES)},
            "Disk": {"DiskMB": 20_000 + 1_000 * n},
            "Networks": [{"Mode": "host", "Device": "eth0", "CIDR": format!("{address}/32"), "IP": address,
                "MBits": 1_000}],
            "NodeNetworks": [{
                "Mode": "host", "Device": "eth0", "Speed": 1_000,
                "Addresses": [{"Family": "ipv4", "Alias": "default", "Address": address}],
            }],
            "MinDynamicPort": 20_000,
            "MaxDynamicPort": 32_000,
        },
        "ReservedResources": {
            "Cpu": {"CpuShares": 0}, "Memory": reserved, "Disk": {"DiskMB": 0},
            "Networks": {"ReservedHostPorts": reserved_ports},
        },
        "Status": "ready",
        "SchedulingEligibility": "eligible",
    })
}
