//! Rolling restarts of changed templates, for people.

use std::collections::BTreeMap;

use model::Allocation;

use crate::output::Table;

/// Where the rolling restart of an allocation stands; None = nothing of it is to restart.
pub(crate) fn of_alloc(a: &Allocation) -> Option<&'static str> {
    let mut restarts = a.rolling_restarts().peekable();
    restarts.peek().filter(|_| !a.terminal())?;
    let (unhealthy, begun) = restarts.fold((false, false), |(u, b), r| (u | r.unhealthy, b | (r.begun != 0)));
    Some(match (unhealthy, begun) {
        (true, _) => "not healthy with its new templates, the others of its group wait",
        (_, true) => "restarts with its new templates",
        _ => "waits for its turn to restart with its new templates",
    })
}

/// How many allocations of each group wait, restart and have come to grief; None = none does.
pub(crate) fn of_job(allocs: &[Allocation]) -> Option<Table> {
    let mut groups: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for a in allocs.iter().filter(|a| of_alloc(a).is_some()) {
        let counts = groups.entry(&a.task_group).or_default();
        let unhealthy = a.rolling_restarts().any(|r| r.unhealthy);
        let begun = a.rolling_restarts().any(|r| r.begun != 0);
        counts[if unhealthy { 2 } else { usize::from(begun) }] += 1;
    }
    if groups.is_empty() {
        return None;
    }
    let mut table = Table::new(["Task Group", "Waiting", "Restarting", "Unhealthy"]);
    for (group, counts) in groups {
        table.row(std::iter::once(group.to_owned()).chain(counts.iter().map(usize::to_string)));
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use model::{Map, RollingRestart, TaskState};

    use super::*;

    fn alloc(group: &str, begun: i64, unhealthy: bool) -> Allocation {
        let restart = RollingRestart { begun, unhealthy, ..RollingRestart::default() };
        let task = TaskState { rolling_restart: Some(Box::new(restart)), ..TaskState::default() };
        Allocation {
            task_group: group.into(),
            task_states: Map::from_iter([("t".into(), task)]),
            ..Allocation::default()
        }
    }

    #[test]
    fn a_job_tells_how_far_its_groups_are() {
        let allocs = [
            alloc("a", 0, false),
            alloc("a", 0, false),
            alloc("a", 2, false),
            alloc("b", 2, true),
            Allocation::default(),
        ];
        let lines = of_job(&allocs).expect("a table").render();
        let rows: Vec<Vec<&str>> = lines.iter().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1..], [vec!["a", "2", "1", "0"], vec!["b", "0", "0", "1"]], "{lines:?}");
        assert!(of_job(&allocs[4..]).is_none());
        assert!(of_alloc(&allocs[0]).is_some_and(|text| text.starts_with("waits")));
    }
}
