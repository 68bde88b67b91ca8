//! Whether something is still on its way. Pure.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;

use super::{
    observe::{Seen, is_live},
    scenario::Until,
};

/// Evaluations for later than this are not waited for.
const SOON: Duration = Duration::from_secs(40);

/// What is on its way, if anything is. `away` are the nodes whose agents were killed; `now` is the wall clock in RFC
/// 3339 of the answers.
pub(super) fn on_its_way(seen: &Seen, away: &BTreeSet<String>, now: Duration) -> Option<String> {
    for eval in &seen.evals {
        let later = eval["WaitUntil"].as_str().and_then(unix_time).is_some_and(|at| at > now + SOON);
        if eval["Status"] == "pending" && !later {
            return Some(format!("an evaluation because of {}", eval["TriggeredBy"]));
        }
    }
    for alloc in &seen.allocs {
        let is_away = alloc["NodeID"].as_str().is_some_and(|id| away.contains(id));
        let should_run = alloc["DesiredStatus"] == "run";
        if !is_away && ((should_run && alloc["ClientStatus"] == "pending") || (!should_run && is_live(alloc))) {
            return Some(format!(
                "allocation {} is {} and should {}",
                alloc["Name"], alloc["ClientStatus"], alloc["DesiredStatus"]
            ));
        }
    }
    if let Some(deployment) = seen.deployments.last().filter(|d| d["Status"] == "running") {
        let mut groups = deployment["TaskGroups"].as_object().into_iter().flatten().map(|(_, g)| g).peekable();
        let waits_for_promotion =
            groups.peek().is_some() && groups.all(|g| number(g, "DesiredCanaries") == 0 || canaries_wait(g));
        let has_canaries = deployment["TaskGroups"].as_object().into_iter().flatten().any(|(_, g)| canaries_wait(g));
        if !(waits_for_promotion && has_canaries) && seen.job["Stop"] != true {
            return Some("a deployment".into());
        }
    }
    seen.children.iter().find_map(|child| on_its_way(child, away, now))
}

/// Whether the step's own condition is met.
pub(super) fn is_met(until: Until, seen: &Seen) -> bool {
    match until {
        Until::Quiet | Until::Seconds(_) => true,
        Until::Count(status, n) => seen.everything().filter(|a| a["ClientStatus"] == status).count() >= n,
        Until::Deployment(status) => seen.deployments.iter().any(|d| d["Status"] == status),
    }
}

fn number(group: &Value, name: &str) -> u64 {
    group[name].as_u64().unwrap_or(0)
}

/// All its canaries are healthy and nobody has promoted them.
fn canaries_wait(group: &Value) -> bool {
    let wanted = number(group, "DesiredCanaries");
    wanted > 0 && group["Promoted"] != true && group["AutoPromote"] != true && number(group, "HealthyAllocs") >= wanted
}

/// Seconds since 1970 of `2026-01-02T03:04:05.678Z`; none for the zero time.
fn unix_time(text: &str) -> Option<Duration> {
    let number = |range: std::ops::Range<usize>| text.get(range)?.parse::<i64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    // Days of the proleptic Gregorian calendar, the year beginning in March.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (m * 306 + 5) / 10 + day - 1 - 719_468;
    u64::try_from(days * 86_400 + hour * 3_600 + minute * 60 + second).ok().filter(|t| *t > 0).map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn way(seen: &Seen) -> Option<String> {
        on_its_way(seen, &BTreeSet::from(["away".to_owned()]), Duration::from_secs(1_700_000_000))
    }

    #[test]
    fn times_are_read() {
        assert_eq!(unix_time("2023-11-14T22:13:20Z"), Some(Duration::from_secs(1_700_000_000)));
        assert_eq!(unix_time("1970-01-01T00:00:01.5Z"), Some(Duration::from_secs(1)));
        assert_eq!(unix_time("0001-01-01T00:00:00Z"), None);
    }

    #[test]
    fn what_is_pending_is_on_its_way_but_for_what_comes_late_or_is_away() {
        let alloc = |node: &str, desired: &str, client: &str| Seen {
            allocs: vec![json!({"NodeID": node, "DesiredStatus": desired, "ClientStatus": client})],
            ..Seen::default()
        };
        assert!(way(&alloc("here", "run", "pending")).is_some());
        assert!(way(&alloc("here", "stop", "running")).is_some());
        assert!(way(&alloc("away", "stop", "running")).is_none());
        assert!(way(&alloc("here", "run", "running")).is_none());
        let eval =
            |until: &str| Seen { evals: vec![json!({"Status": "pending", "WaitUntil": until})], ..Seen::default() };
        assert!(way(&eval("2023-11-14T22:13:25Z")).is_some());
        assert!(way(&eval("2023-11-14T23:13:25Z")).is_none());
    }

    #[test]
    fn a_deployment_is_awaited_unless_it_waits_for_somebody() {
        let deployment = |group: Value| Seen {
            deployments: vec![json!({"Status": "running", "TaskGroups": {"g": group}})],
            ..Seen::default()
        };
        assert!(way(&deployment(json!({"DesiredTotal": 1}))).is_some());
        assert!(way(&deployment(json!({"DesiredCanaries": 1, "HealthyAllocs": 0}))).is_some());
        assert!(way(&deployment(json!({"DesiredCanaries": 1, "HealthyAllocs": 1}))).is_none());
        assert!(way(&deployment(json!({"DesiredCanaries": 1, "HealthyAllocs": 1, "AutoPromote": true}))).is_some());
    }
}
