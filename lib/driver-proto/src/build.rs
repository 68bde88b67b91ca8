//! Constructors that fill what peers need.
//!
//! Go hosts dereference several sub-messages without a check, Go plugins refuse absent durations: a forgotten `None`
//! crashes someone else's process. Every message of that kind is therefore made here.

use std::time::{Duration as StdDuration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use crate::{Duration, Timestamp, driver};

/// "Not set" for Go: the first second of year 1. The Unix epoch would be shown as a real time.
pub const ZERO_TIME: Timestamp = Timestamp { seconds: -62_135_596_800, nanos: 0 };

/// The digest of a [`crate::remote::Bundle`] from path, mode and data of each file, as its definition says.
pub fn bundle_digest<'a>(files: impl IntoIterator<Item = (&'a str, u32, &'a [u8])>) -> String {
    let mut hash = Sha256::new();
    for (path, mode, data) in files {
        hash.update((path.len() as u64).to_le_bytes());
        hash.update(path.as_bytes());
        hash.update(mode.to_le_bytes());
        hash.update((data.len() as u64).to_le_bytes());
        hash.update(data);
    }
    hash.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

/// A wire duration; beyond the range of the wire it is clamped.
pub fn duration(value: StdDuration) -> Duration {
    const MAX_SECONDS: u64 = 315_576_000_000;
    match value.as_secs() {
        secs if secs >= MAX_SECONDS => Duration { seconds: MAX_SECONDS as i64, nanos: 0 },
        secs => Duration { seconds: secs as i64, nanos: value.subsec_nanos() as i32 },
    }
}

/// A duration from the wire; absent or negative is zero.
pub fn std_duration(value: Option<&Duration>) -> StdDuration {
    match value {
        Some(d) if d.seconds >= 0 && d.nanos >= 0 => {
            StdDuration::new(d.seconds as u64, (d.nanos as u32).min(999_999_999))
        }
        _ => StdDuration::ZERO,
    }
}

/// The end of year 9999, the last second that the wire form allows.
const LAST_SECOND: i64 = 253_402_300_799;

/// A wire time; "none" becomes [`ZERO_TIME`], what the wire cannot say its nearest bound.
pub fn timestamp(value: Option<SystemTime>) -> Timestamp {
    let Some(time) = value else { return ZERO_TIME };
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Timestamp { seconds: since.as_secs().min(LAST_SECOND as u64) as i64, nanos: since.subsec_nanos() as i32 }
        }
        Err(before) => {
            let before = before.duration();
            let nanos = before.subsec_nanos();
            let borrow = i64::from(nanos > 0);
            Timestamp {
                seconds: (-(before.as_secs() as i64) - borrow).max(ZERO_TIME.seconds),
                nanos: if nanos > 0 { 1_000_000_000 - nanos as i32 } else { 0 },
            }
        }
    }
}

/// A time from the wire; absent, "not set" and out of range are none.
pub fn system_time(value: Option<&Timestamp>) -> Option<SystemTime> {
    let t = value?;
    if !(ZERO_TIME.seconds + 1..=LAST_SECOND).contains(&t.seconds) || !(0..1_000_000_000).contains(&t.nanos) {
        return None;
    }
    let nanos = StdDuration::from_nanos(t.nanos as u64);
    let whole = StdDuration::from_secs(t.seconds.unsigned_abs());
    let base = if t.seconds >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    base?.checked_add(nanos)
}

/// Answer to WaitTask: the result is always there, also beside an error.
pub fn wait_response(result: driver::ExitResult, err: impl Into<String>) -> driver::WaitTaskResponse {
    driver::WaitTaskResponse { result: Some(result), err: err.into() }
}

/// Answer to ExecTask.
pub fn exec_response(stdout: Vec<u8>, stderr: Vec<u8>, result: driver::ExitResult) -> driver::ExecTaskResponse {
    driver::ExecTaskResponse { stdout, stderr, result: Some(result) }
}

/// Answer to InspectTask with both times and the result in place.
pub fn inspect_response(
    mut status: driver::TaskStatus,
    attributes: std::collections::BTreeMap<String, String>,
    network_override: Option<driver::NetworkOverride>,
) -> driver::InspectTaskResponse {
    status.started_at.get_or_insert(ZERO_TIME);
    status.completed_at.get_or_insert(ZERO_TIME);
    status.result.get_or_insert_default();
    driver::InspectTaskResponse {
        task: Some(status),
        driver: Some(driver::TaskDriverStatus { attributes }),
        network_override,
    }
}

/// One sample with all sub-messages; `at` must be a real time.
pub fn stats_response(
    at: SystemTime,
    total: driver::TaskResourceUsage,
    by_pid: std::collections::BTreeMap<String, driver::TaskResourceUsage>,
) -> driver::TaskStatsResponse {
    driver::TaskStatsResponse {
        stats: Some(driver::TaskStats {
            id: String::new(),
            timestamp: Some(timestamp(Some(at))),
            agg_resource_usage: Some(filled_usage(total)),
            resource_usage_by_pid: by_pid.into_iter().map(|(pid, usage)| (pid, filled_usage(usage))).collect(),
        }),
    }
}

fn filled_usage(mut usage: driver::TaskResourceUsage) -> driver::TaskResourceUsage {
    usage.cpu.get_or_insert_default();
    usage.memory.get_or_insert_default();
    usage
}

/// Answer to StartTask: the configuration is echoed in the handle, or recovery gets an empty id; version 0 is reserved.
pub fn start_response(
    config: driver::TaskConfig,
    version: u16,
    driver_state: Vec<u8>,
    network_override: Option<driver::NetworkOverride>,
) -> driver::StartTaskResponse {
    driver::StartTaskResponse {
        result: driver::start_task_response::Result::Success as i32,
        driver_error_msg: String::new(),
        handle: Some(driver::TaskHandle {
            version: i32::from(version.max(1)),
            config: Some(config),
            state: driver::TaskState::Running as i32,
            driver_state,
        }),
        network_override,
    }
}

/// Both resource messages must exist: drivers dereference them without a check.
pub fn fill_resources(config: &mut driver::TaskConfig) {
    let resources = config.resources.get_or_insert_default();
    let allocated = resources.allocated_resources.get_or_insert_default();
    allocated.cpu.get_or_insert_default();
    allocated.memory.get_or_insert_default();
    resources.linux_resources.get_or_insert_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip_and_unset_is_year_one() {
        for (secs, nanos) in [(0, 0), (1_700_000_000, 1), (1, 999_999_999)] {
            let time = UNIX_EPOCH + StdDuration::new(secs, nanos);
            assert_eq!(system_time(Some(&timestamp(Some(time)))), Some(time));
        }
        let before = UNIX_EPOCH - StdDuration::from_millis(1500);
        assert_eq!(timestamp(Some(before)), Timestamp { seconds: -2, nanos: 500_000_000 });
        assert_eq!(system_time(Some(&timestamp(Some(before)))), Some(before));
        assert_eq!(timestamp(None), ZERO_TIME);
        assert_eq!(system_time(Some(&ZERO_TIME)), None);
        assert_eq!(system_time(Some(&Timestamp { seconds: i64::MAX, nanos: 0 })), None);
        assert_eq!(system_time(Some(&Timestamp { seconds: i64::MIN, nanos: 0 })), None);
        assert_eq!(system_time(Some(&Timestamp { seconds: 5, nanos: -1 })), None);
    }

    proptest::proptest! {
        #[test]
        fn every_wire_time_and_duration_is_read_or_none(seconds: i64, nanos: i32) {
            if let Some(time) = system_time(Some(&Timestamp { seconds, nanos })) {
                proptest::prop_assert_eq!(timestamp(Some(time)), Timestamp { seconds, nanos });
            }
            let read = std_duration(Some(&Duration { seconds, nanos }));
            proptest::prop_assert!(duration(read).seconds >= 0);
        }
    }

    #[test]
    fn durations_are_clamped_to_the_wire_range() {
        assert_eq!(duration(StdDuration::MAX).seconds, 315_576_000_000);
        let odd = StdDuration::new(3, 7);
        assert_eq!(std_duration(Some(&duration(odd))), odd);
        assert_eq!(std_duration(Some(&Duration { seconds: -1, nanos: 0 })), StdDuration::ZERO);
        assert_eq!(std_duration(None), StdDuration::ZERO);
    }

    #[test]
    fn answers_hold_every_sub_message() {
        let inspected = inspect_response(driver::TaskStatus::default(), Default::default(), None);
        let task = inspected.task.expect("task");
        assert!(task.started_at.is_some() && task.completed_at.is_some() && task.result.is_some());
        assert!(inspected.driver.is_some());
        assert!(wait_response(Default::default(), "x").result.is_some());
        assert!(exec_response(vec![], vec![], Default::default()).result.is_some());
        let by_pid = [("1".to_owned(), driver::TaskResourceUsage::default())].into();
        let stats = stats_response(UNIX_EPOCH, Default::default(), by_pid).stats.expect("stats");
        assert!(stats.timestamp.is_some());
        assert!(stats.agg_resource_usage.is_some_and(|u| u.cpu.is_some() && u.memory.is_some()));
        assert!(stats.resource_usage_by_pid.values().all(|u| u.cpu.is_some() && u.memory.is_some()));
        let config = driver::TaskConfig { id: "a/b/c".into(), ..Default::default() };
        let handle = start_response(config, 0, vec![], None).handle.expect("handle");
        assert_eq!((handle.version, handle.config.expect("config").id.as_str()), (1, "a/b/c"));
        let mut config = driver::TaskConfig::default();
        fill_resources(&mut config);
        let resources = config.resources.expect("resources");
        assert!(resources.linux_resources.is_some());
        assert!(resources.allocated_resources.is_some_and(|r| r.cpu.is_some() && r.memory.is_some()));
    }
}
