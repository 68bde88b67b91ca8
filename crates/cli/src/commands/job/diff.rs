//! What changes between two forms of a job, as lines.

use serde_json::Value;

use super::defaults::shown;

/// A diff tree as lines: `+` added, `-` deleted, `+/-` edited.
pub(crate) fn diff_lines(diff: &Value, verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if diff.is_object() {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        lines.push(format!("{}Job: {:?}", mark(diff), text(&diff["ID"])));
        fields_and_objects(diff, 1, verbose, &mut lines);
        for group in diff["TaskGroups"].as_array().into_iter().flatten() {
            let updates: Vec<String> = group["Updates"].as_object().into_iter().flatten().map(|(k, n)| format!("{n} {k}")).collect();
            let updates = if updates.is_empty() { String::new() } else { format!(" ({})", updates.join(", ")) };
            if group["Type"] == "None" && !verbose && updates.is_empty() {
                continue;
            }
            lines.push(format!("{}Task Group: {:?}{updates}", mark(group), text(&group["Name"])));
            fields_and_objects(group, 1, verbose, &mut lines);
            for task in group["Tasks"].as_array().into_iter().flatten() {
                if task["Type"] == "None" && !verbose {
                    continue;
                }
                let notes = notes(task);
                lines.push(format!("  {}Task: {:?}{notes}", mark(task), text(&task["Name"])));
                fields_and_objects(task, 2, verbose, &mut lines);
            }
        }
    }
    lines
}

fn mark(v: &Value) -> &'static str {
    match v["Type"].as_str() {
        Some("Added") => "+ ",
        Some("Deleted") => "- ",
        Some("Edited") => "+/- ",
        _ => "",
    }
}

fn notes(v: &Value) -> String {
    let all: Vec<&str> = v["Annotations"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if all.is_empty() { String::new() } else { format!(" ({})", all.join(", ")) }
}

fn fields_and_objects(v: &Value, depth: usize, verbose: bool, lines: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    for field in v["Fields"].as_array().into_iter().flatten() {
        let name = field["Name"].as_str().unwrap_or_default();
        let value = |key: &str| shown(name, field[key].as_str().unwrap_or_default());
        let (old, new) = (value("Old"), value("New"));
        let value = match field["Type"].as_str() {
            Some("Edited") => format!("{old:?} => {new:?}"),
            Some("Deleted") => format!("{old:?}"),
            Some("None") if !verbose => continue,
            _ => format!("{new:?}"),
        };
        lines.push(format!("{indent}{}{name}: {value}{}", mark(field), notes(field)));
    }
    for object in v["Objects"].as_array().into_iter().flatten() {
        if object["Type"] == "None" && !verbose {
            continue;
        }
        lines.push(format!("{indent}{}{} {{", mark(object), object["Name"].as_str().unwrap_or_default()));
        fields_and_objects(object, depth + 1, verbose, lines);
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
            "Fields": [{"Type": "Edited", "Name": "Priority", "Old": "50", "New": "60"}, {"Type": "None", "Name": "Region", "Old": "global", "New": "global"}],
            "TaskGroups": [{
                "Type": "Edited", "Name": "g", "Updates": {"in-place update": 2},
                "Tasks": [{"Type": "Edited", "Name": "t", "Annotations": ["forces create/destroy update"],
                           "Objects": [{"Type": "Added", "Name": "Env", "Fields": [{"Type": "Added", "Name": "A", "New": "1"}]}]}]
            }]
        });
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
        assert!(diff_lines(&json!(null), false).is_empty());
    }
}
