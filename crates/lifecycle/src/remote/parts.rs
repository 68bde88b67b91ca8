//! What of a task cannot reach the runtime of a provider, by name: said when the job is submitted as soon as a node has told of the provider, and by
//! the node that is to create the task otherwise.

use model::{node::RemoteProvider, task::Task};

/// What a task asks for that cannot be delivered through this provider, each with the reason and what to do instead.
#[must_use]
pub fn undeliverable(task: &Task, provider: &RemoteProvider) -> Vec<String> {
    let files_of_node = task.templates.iter().any(|t| t.source.as_ref().is_some_and(|source| !source.is_empty()));
    let users_of_node = task.templates.iter().any(|t| t.uid.is_some() || t.gid.is_some());
    let rules = [
        (!task.artifacts.is_empty(), "artifact: the task runs where no node has a directory for it; let the workload fetch what it needs"),
        (
            !task.volume_mounts.is_empty(),
            "volume_mount: the task runs where the volumes of nodes are not; use what the runtime has of its own",
        ),
        (
            task.resources.cores.is_some_and(|cores| cores > 0),
            "resources.cores: they are cores of a node, and the task runs elsewhere; use resources.cpu",
        ),
        (
            task.resources.secrets_mb.is_some_and(|mib| mib > 0),
            "resources.secrets: the directory is the runtime's, with its own limits; leave the size out",
        ),
        (files_of_node, "template.source: it is a file of a node, and the task runs elsewhere; write the text as data"),
        (users_of_node, "template.uid, template.gid: they are users of a node and mean nothing where the task runs; leave them out"),
        (
            provider.no_files && !task.templates.is_empty(),
            "template: this runtime takes no files; use the env block, or let the workload fetch what it needs",
        ),
        (provider.no_files && task.dispatch_payload.is_some(), "dispatch_payload: this runtime takes no files; use meta"),
        (
            provider.no_signals && !matches!(task.kill_signal.as_str(), "" | "SIGTERM"),
            "kill_signal: this runtime stops tasks in its own way, with no signal of choice; leave it out",
        ),
    ];
    let because = |what: &str| format!("task {:?}: driver {:?} cannot deliver {what}", task.name, task.driver);
    rules.into_iter().filter(|(holds, _)| *holds).map(|(_, what)| because(what)).collect()
}

#[cfg(test)]
mod tests {
    use model::{
        resources::Resources,
        task::{Artifact, DispatchPayload, Template, VolumeMount},
    };

    use super::*;

    #[test]
    fn what_cannot_be_delivered_is_named() {
        let full = RemoteProvider::default();
        let poor = RemoteProvider { no_files: true, no_signals: true, ..RemoteProvider::default() };
        let inline = Template { data: Some("x".into()), ..Template::default() };
        let cases: [(Task, &str, bool); 8] = [
            (
                Task { resources: Resources { cores: Some(1), ..Resources::default() }, ..Task::default() },
                "deliver resources.cores:",
                false,
            ),
            (Task { artifacts: vec![Artifact::default()], ..Task::default() }, "deliver artifact:", false),
            (Task { volume_mounts: vec![VolumeMount::default()], ..Task::default() }, "deliver volume_mount:", false),
            (
                Task { templates: vec![Template { source: Some("a".into()), ..Template::default() }], ..Task::default() },
                "deliver template.source:",
                false,
            ),
            (Task { templates: vec![Template { uid: Some(1), ..inline.clone() }], ..Task::default() }, "deliver template.uid", false),
            (Task { templates: vec![inline], ..Task::default() }, "deliver template:", true),
            (Task { dispatch_payload: Some(DispatchPayload::default()), ..Task::default() }, "deliver dispatch_payload:", true),
            (Task { kill_signal: "SIGINT".into(), ..Task::default() }, "deliver kill_signal:", true),
        ];
        for (task, part, only_poor) in cases {
            let said = undeliverable(&task, &poor);
            assert!(said.iter().any(|why| why.contains(part)), "{part} in {said:?}");
            assert_eq!(undeliverable(&task, &full).is_empty(), only_poor, "{part}");
        }
        assert_eq!(undeliverable(&Task::default(), &poor), Vec::<String>::new());
    }
}
