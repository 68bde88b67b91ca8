//! What changes between two forms of a job, as lines.

use model::diff::{DiffType, FieldDiff, JobDiff, ObjectDiff};

use super::defaults::shown;

/// A diff tree as lines: `+` added, `-` deleted, `+/-` edited.
pub(crate) fn diff_lines(diff: &JobDiff, verbose: bool) -> Vec<String> {
    let mut lines = vec![format!("{}Job: {:?}", mark(diff.kind), diff.id)];
    fields_and_objects(&diff.fields, &diff.objects, 1, verbose, &mut lines);
    for group in &diff.task_groups {
        let updates: Vec<String> = group.updates.iter().map(|(k, n)| format!("{n} {k}")).collect();
        let updates = if updates.is_empty() { String::new() } else { format!(" ({})", updates.join(", ")) };
        if group.kind == DiffType::None && !verbose && updates.is_empty() {
            continue;
        }
        lines.push(format!("{}Task Group: {:?}{updates}", mark(group.kind), group.name));
        fields_and_objects(&group.fields, &group.objects, 1, verbose, &mut lines);
        for task in &group.tasks {
            lines.push(format!("  {}Task: {:?}{}", mark(task.kind), task.name, notes(&task.annotations)));
            if task.kind != DiffType::None {
                fields_and_objects(&task.fields, &task.objects, 2, verbose, &mut lines);
            }
        }
    }
    lines
}

fn mark(kind: DiffType) -> &'static str {
    match kind {
        DiffType::Added => "+ ",
        DiffType::Deleted => "- ",
        DiffType::Edited => "+/- ",
        DiffType::None => "",
    }
}

fn notes(annotations: &[String]) -> String {
    if annotations.is_empty() { String::new() } else { format!(" ({})", annotations.join(", ")) }
}

fn fields_and_objects(
    fields: &[FieldDiff],
    objects: &[ObjectDiff],
    depth: usize,
    verbose: bool,
    lines: &mut Vec<String>,
) {
    let indent = "  ".repeat(depth);
    for field in fields {
        let (old, new) = (shown(&field.name, &field.old), shown(&field.name, &field.new));
        let value = match field.kind {
            DiffType::Edited => format!("{old:?} => {new:?}"),
            DiffType::Deleted => format!("{old:?}"),
            DiffType::None if !verbose => continue,
            DiffType::None | DiffType::Added => format!("{new:?}"),
        };
        lines.push(format!("{indent}{}{}: {value}{}", mark(field.kind), field.name, notes(&field.annotations)));
    }
    for object in objects.iter().filter(|object| object.kind != DiffType::None || verbose) {
        lines.push(format!("{indent}{}{} {{", mark(object.kind), object.name));
        fields_and_objects(&object.fields, &object.objects, depth + 1, verbose, lines);
        lines.push(format!("{indent}}}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::diff_lines;

    #[test]
    fn diffs_are_shown_as_trees() {
        let diff = json!({
            "Type": "Edited", "ID": "web",
            "Fields": [{"Type": "Edited", "Name": "Priority", "Old": "50", "New": "60"},
                {"Type": "None", "Name": "Region", "Old": "global", "New": "global"}],
            "TaskGroups": [{
                "Type": "Edited", "Name": "g", "Updates": {"in-place update": 2},
                "Tasks": [{"Type": "Edited", "Name": "t", "Annotations": ["forces create/destroy update"],
                           "Objects": [{"Type": "Added", "Name": "Env",
                               "Fields": [{"Type": "Added", "Name": "A", "New": "1"}]}]}]
            }]
        });
        let diff = api::go_json::from_value(diff).expect("a diff");
        assert_eq!(
            diff_lines(&diff, false),
            [
                "+/- Job: \"web\"",
                "  +/- Priority: \"50\" => \"60\"",
                "+/- Task Group: \"g\" (2 in-place update)",
                "  +/- Task: \"t\" (forces create/destroy update)",
                "    + Env {",
                "      + A: \"1\"",
                "    }",
            ]
        );
    }
}
