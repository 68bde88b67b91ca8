//! Sizes of tasks.

use driver_sdk::{RemoteError, TaskConfig};

use crate::Answer;

/// Sizes of Fargate: CPU units, least and most MiB, step.
const FARGATE: [(u32, u32, u32, u32); 7] = [
    (256, 512, 2048, 512),
    (512, 1024, 4096, 1024),
    (1024, 2048, 8192, 1024),
    (2048, 4096, 16_384, 1024),
    (4096, 8192, 30_720, 1024),
    (8192, 16_384, 61_440, 4096),
    (16_384, 32_768, 122_880, 8192),
];

/// The largest of them, in CPU units and MiB.
const LARGEST: (u32, u32) = (16_384, 122_880);

/// The smallest size of Fargate that is not smaller than this.
///
/// # Errors
/// [`RemoteError::WrongRequest`]: there is none. `noun` is what the service counts in, and how many CPU units are one.
pub fn fargate_size(cpu: u32, memory: u32, (noun, units): (&str, u32)) -> Answer<(u32, u32)> {
    smallest(cpu, memory).ok_or_else(|| {
        let told = |cpu: u32| f64::from(cpu) / f64::from(units);
        RemoteError::wrong_request(format!(
            "no size of Fargate has {} {noun} and {memory} MiB; the largest has {} and {}",
            told(cpu),
            told(LARGEST.0),
            LARGEST.1
        ))
    })
}

fn smallest(cpu: u32, memory: u32) -> Option<(u32, u32)> {
    FARGATE.iter().find_map(|&(units, least, most, step)| {
        if units < cpu || most < memory {
            return None;
        }
        let wanted = memory.max(least);
        // The smallest machine alone has 512 MiB beside whole GiB.
        let fitting = if units == 256 && wanted > 512 {
            wanted.div_ceil(1024) * 1024
        } else {
            least + (wanted - least).div_ceil(step) * step
        };
        (fitting <= most).then_some((units, fitting))
    })
}

/// CPU units and MiB: what the options name, else what the job's `resources` ask for.
pub fn asked(task: &TaskConfig, cpu: Option<u32>, memory: Option<u32>) -> (u32, u32) {
    let of_job = resources(task);
    (cpu.unwrap_or(of_job.0), memory.unwrap_or(of_job.1))
}

fn resources(task: &TaskConfig) -> (u32, u32) {
    let allocated = task.resources.as_ref().and_then(|r| r.allocated_resources.as_ref());
    let cpu = allocated.and_then(|a| a.cpu.as_ref()).map_or(0, |c| c.cpu_shares);
    let memory = allocated.and_then(|a| a.memory.as_ref()).map_or(0, |m| m.memory_mb.max(m.memory_max_mb));
    (u32::try_from(cpu).unwrap_or(0), u32::try_from(memory).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_fargate_hold_what_is_asked_for() {
        let table = [
            ((0, 0), Some((256, 512))),
            ((100, 300), Some((256, 512))),
            ((256, 513), Some((256, 1024))),
            ((256, 2048), Some((256, 2048))),
            ((256, 2049), Some((512, 3072))),
            ((257, 100), Some((512, 1024))),
            ((1000, 8192), Some((1024, 8192))),
            ((8000, 16_385), Some((8192, 20_480))),
            ((16_384, 122_880), Some((16_384, 122_880))),
            ((16_385, 1), None),
            ((1, 122_881), None),
        ];
        for ((cpu, memory), wanted) in table {
            assert_eq!(smallest(cpu, memory), wanted, "{cpu} {memory}");
        }
        for (noun, said) in [
            (("CPU units", 1), "has 17408 CPU units and 1 MiB; the largest has 16384 and 122880"),
            (("vCPUs", 1024), "has 17 vCPUs and 1 MiB; the largest has 16 and 122880"),
        ] {
            let why = fargate_size(17_408, 1, noun).expect_err("too large").to_string();
            assert!(why.contains(said), "{why}");
        }
    }
}
