//! Admission of templates: the servers parse a job's templates at submission and refuse those that no node can
//! render.

use model::{
    Job,
    validate::{Problem, ValidationErrors},
};
use template::{Syntax, Template};

/// Parses every template whose text is in the job; the node reads those in files.
///
/// # Errors
/// The first mistake of each template, with its place.
pub(super) fn check(job: &Job) -> Result<(), ValidationErrors> {
    let mut errors = ValidationErrors::default();
    for group in &job.task_groups {
        let mut of_group = ValidationErrors::default();
        for task in &group.tasks {
            let found = task.templates.iter().filter_map(|t| mistake(t, task.vault.is_none()));
            let found = found.map(Problem::Text).collect();
            part(&mut of_group, format!("Task {} validation failed", task.name), ValidationErrors(found));
        }
        part(&mut errors, format!("Task group {} validation failed", group.name), of_group);
    }
    if errors.0.is_empty() { Ok(()) } else { Err(errors) }
}

fn part(into: &mut ValidationErrors, prefix: String, errors: ValidationErrors) {
    if !errors.0.is_empty() {
        into.0.push(Problem::In { prefix, errors });
    }
}

fn mistake(t: &model::task::Template, without_vault: bool) -> Option<String> {
    let text = |o: &Option<String>| o.clone().unwrap_or_default();
    let (left, right) = (text(&t.left_delimiter), text(&t.right_delimiter));
    let syntax = Syntax { left, right, denied: Vec::new(), without_vault };
    Template::parse(&text(&t.destination), &text(&t.data), &syntax).err().map(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn job(data: &str) -> Job {
        let mut job: Job = serde_json::from_value(json!({
            "ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Templates": [
                {"EmbeddedTmpl": "fine {{ env \"A\" }}", "DestPath": "local/fine"},
                {"EmbeddedTmpl": data, "DestPath": "local/app.conf"},
                {"SourcePath": "local/in.tpl", "DestPath": "local/out"},
            ]}]}]
        }))
        .expect("a job");
        job.canonicalize();
        job
    }

    #[test]
    fn mistakes_are_told_with_their_place() {
        assert_eq!(check(&job("port = {{ env \"NOMAD_PORT_http\" }}")), Ok(()));
        let mut of_vault = job("a\n b = {{ secret \"x\" }}\n");
        let errors = check(&of_vault).expect_err("refused").flat();
        assert_eq!(
            errors,
            ["Task group g validation failed: Task t validation failed: template local/app.conf line 2 column 9: \
                    the function secret reads secrets with the token of a vault block, and the task has none; add \
                    vault {} to the task (in: b = {{ secret \"x\" }})"]
        );
        of_vault.task_groups[0].tasks[0].vault = Some(model::task::Vault::default());
        assert_eq!(check(&of_vault), Ok(()));
    }
}
