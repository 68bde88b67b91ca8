//! Parts of a task that cannot reach a provider's runtime, by name. The servers check at submission if a node has
//! reported the provider. Otherwise the node that is to create the task checks.

use model::{
    TaskGroup,
    identity_rules::{change_mode, identities},
    node::RemoteProvider,
    task::{Identity, Task},
};

/// The parts of a task that this provider cannot deliver, each with the reason and an alternative.
#[must_use]
pub fn undeliverable(task: &Task, provider: &RemoteProvider) -> Vec<String> {
    let files_of_node = task.templates.iter().any(|t| t.source.as_ref().is_some_and(|source| !source.is_empty()));
    let begins =
        task.templates.iter().filter_map(|t| t.change_script.as_ref()).any(|s| s.run_on_first_render == Some(true));
    let rolling = task.templates.iter().any(|t| t.rolling == Some(true));
    let users_of_node = task.templates.iter().any(|t| t.uid.is_some() || t.gid.is_some());
    let rules = [
        (
            provider.no_files && !task.artifacts.is_empty(),
            "artifact: this runtime takes no files; let the workload fetch what it needs",
        ),
        (
            task.artifacts.iter().any(|artifact| artifact.chown),
            "artifact.chown: the user is one of a node and means nothing where the task runs; leave it out",
        ),
        (
            task.artifacts.iter().filter_map(|artifact| artifact.destination.as_deref()).any(leads_elsewhere),
            "artifact.destination: only what is below local/ travels to where the task runs",
        ),
        (
            !provider.volumes && !task.volume_mounts.is_empty(),
            "volume_mount: the task runs where the volumes of nodes are not, and this runtime mounts none of its \
                own by name",
        ),
        (
            task.resources.cores.is_some_and(|cores| cores > 0),
            "resources.cores: they are cores of a node, and the task runs elsewhere; use resources.cpu",
        ),
        (
            !task.resources.devices.is_empty(),
            "resources.device: they are devices of a node, and the task runs elsewhere; ask the runtime for its own in \
                the task's config",
        ),
        (
            task.resources.secrets_mb.is_some_and(|mib| mib > 0),
            "resources.secrets: the directory is the runtime's, with its own limits; leave the size out",
        ),
        (
            task.vault.is_some(),
            "vault: a token is renewed by the node that holds it, and other nodes take over the management of the \
                task; let the workload log in to Vault with the token of an identity block",
        ),
        (files_of_node, "template.source: it is a file of a node, and the task runs elsewhere; write the text as data"),
        (
            begins,
            "template.change_script.run_on_first_render: the node runs nothing in a task that runs elsewhere; do the \
                first work in the task's command",
        ),
        (
            rolling,
            "template.rolling: templates of a task that runs elsewhere are rendered at its start alone, and never \
                restart it; leave it out",
        ),
        (
            users_of_node,
            "template.uid, template.gid: they are users of a node and mean nothing where the task runs; leave them out",
        ),
        (
            provider.no_files && !task.templates.is_empty(),
            "template: this runtime takes no files; use the env block, or let the workload fetch what it needs",
        ),
        (
            provider.no_files && task.dispatch_payload.is_some(),
            "dispatch_payload: this runtime takes no files; use meta",
        ),
        (
            provider.no_signals && !matches!(task.kill_signal.as_str(), "" | "SIGTERM"),
            "kill_signal: this runtime stops tasks in its own way, with no signal of choice; leave it out",
        ),
    ];
    let because = |what: &str| format!("task {:?}: driver {:?} cannot deliver {what}", task.name, task.driver);
    let of_identity =
        |i: &Identity| identity_trouble(i, provider).map(|what| because(&format!("identity {:?}: {what}", i.name)));
    let general = rules.into_iter().filter(|(holds, _)| *holds).map(|(_, what)| because(what));
    general.chain(identities(task).filter_map(of_identity)).collect()
}

/// The part of the group's network that a driver of remote tasks cannot honour, for people.
#[must_use]
pub fn unconnectable(group: &TaskGroup, driver: &str) -> Option<String> {
    let network = group.networks.first()?;
    let what = match network.mode.as_str() {
        "" | "host" if network.dns.is_some() => "network.dns".to_owned(),
        "" | "host" => return None,
        mode => format!("network mode {mode:?}"),
    };
    let why = format!("driver {driver:?} runs tasks that are not in the network of their group");
    Some(format!("{why}: {what} cannot be honoured; use mode \"host\" and what the runtime has of its own"))
}

/// Whether it leaves `local`, as far as known before its names are replaced.
fn leads_elsewhere(destination: &str) -> bool {
    let rest = destination.trim_start_matches("${NOMAD_TASK_DIR}");
    if rest.contains("${") && !rest.starts_with("${NOMAD_ALLOC_DIR}") && !rest.starts_with("${NOMAD_SECRETS_DIR}") {
        return false;
    }
    let mut below: Vec<&str> = if rest.len() < destination.len() { vec!["local"] } else { Vec::new() };
    for part in rest.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(below.pop()),
            name => below.push(name),
        }
    }
    below.first() != Some(&"local")
}

/// Why an identity does not work through this provider. Expiring tokens must be renewed where the task runs.
fn identity_trouble(identity: &Identity, provider: &RemoteProvider) -> Option<&'static str> {
    let ends = identity.ttl.nanos() > 0;
    let rules = [
        (identity.file && provider.no_files, "file: this runtime takes no files; use env"),
        (
            ends && identity.env,
            "ttl with env: a variable keeps its first token for as long as the task runs; use file alone, or \
                leave ttl out",
        ),
        (
            ends && identity.file && !provider.refresh,
            "ttl: this runtime renews no files of a task that runs; leave ttl out",
        ),
        (
            ends && identity.change_mode == change_mode::RESTART,
            "change_mode restart: only the servers order an instance stopped; use noop, where the task reads its file \
                again, or signal",
        ),
        (
            ends && identity.change_mode == change_mode::SIGNAL && provider.no_signals,
            "change_mode signal: this runtime sends no signals of choice; use noop",
        ),
    ];
    // An identity that the task cannot see needs nothing.
    rules.into_iter().find(|(holds, _)| *holds && (identity.env || identity.file)).map(|(_, what)| what)
}

#[cfg(test)]
mod tests {
    use model::{
        network::{Dns, Network},
        resources::Resources,
        task::{Artifact, ChangeScript, DispatchPayload, Template, VolumeMount},
    };

    use super::*;

    #[test]
    fn what_cannot_be_delivered_is_named() {
        let full = RemoteProvider { volumes: true, ..RemoteProvider::default() };
        let poor = RemoteProvider { no_files: true, no_signals: true, ..RemoteProvider::default() };
        let inline = Template { data: Some("x".into()), ..Template::default() };
        let cases: [(Task, &str, bool); 13] = [
            (
                Task { resources: Resources { cores: Some(1), ..Resources::default() }, ..Task::default() },
                "deliver resources.cores:",
                false,
            ),
            (
                Task {
                    resources: Resources { devices: vec![model::RequestedDevice::default()], ..Resources::default() },
                    ..Task::default()
                },
                "deliver resources.device:",
                false,
            ),
            (Task { artifacts: vec![Artifact::default()], ..Task::default() }, "deliver artifact:", true),
            (
                Task { artifacts: vec![Artifact { chown: true, ..Artifact::default() }], ..Task::default() },
                "deliver artifact.chown:",
                false,
            ),
            (
                Task {
                    artifacts: vec![Artifact { destination: Some("secrets/x".into()), ..Artifact::default() }],
                    ..Task::default()
                },
                "deliver artifact.destination:",
                false,
            ),
            (Task { volume_mounts: vec![VolumeMount::default()], ..Task::default() }, "deliver volume_mount:", true),
            (
                Task {
                    templates: vec![Template { source: Some("a".into()), ..Template::default() }],
                    ..Task::default()
                },
                "deliver template.source:",
                false,
            ),
            (
                Task {
                    templates: vec![Template {
                        change_script: Some(ChangeScript {
                            run_on_first_render: Some(true),
                            ..ChangeScript::default()
                        }),
                        ..inline.clone()
                    }],
                    ..Task::default()
                },
                "deliver template.change_script.run_on_first_render",
                false,
            ),
            (
                Task { templates: vec![Template { uid: Some(1), ..inline.clone() }], ..Task::default() },
                "deliver template.uid",
                false,
            ),
            (
                Task { templates: vec![Template { rolling: Some(true), ..inline.clone() }], ..Task::default() },
                "deliver template.rolling",
                false,
            ),
            (Task { templates: vec![inline], ..Task::default() }, "deliver template:", true),
            (
                Task { dispatch_payload: Some(DispatchPayload::default()), ..Task::default() },
                "deliver dispatch_payload:",
                true,
            ),
            (Task { kill_signal: "SIGINT".into(), ..Task::default() }, "deliver kill_signal:", true),
        ];
        for (task, part, only_poor) in cases {
            let said = undeliverable(&task, &poor);
            assert!(said.iter().any(|why| why.contains(part)), "{part} in {said:?}");
            assert_eq!(undeliverable(&task, &full).is_empty(), only_poor, "{part}");
        }
        assert_eq!(undeliverable(&Task::default(), &poor), Vec::<String>::new());
    }

    #[test]
    fn networks_that_are_not_where_the_task_runs_are_refused() {
        let group = |network| TaskGroup { networks: vec![network], ..TaskGroup::default() };
        let network = |mode: &str| Network { mode: mode.into(), ..Network::default() };
        assert_eq!(unconnectable(&TaskGroup::default(), "d"), None);
        assert_eq!(unconnectable(&group(network("")), "d"), None);
        assert_eq!(unconnectable(&group(network("host")), "d"), None);
        let bridged = unconnectable(&group(network("bridge")), "d").expect("refused");
        assert!(
            bridged.contains("driver \"d\"") && bridged.contains("network mode \"bridge\" cannot be honoured"),
            "{bridged}"
        );
        let dns = Network { dns: Some(Dns::default()), ..network("host") };
        assert!(unconnectable(&group(dns), "d").is_some_and(|why| why.contains("network.dns cannot be honoured")));
    }

    #[test]
    fn destinations_of_artifacts_are_below_local() {
        for (destination, elsewhere) in [
            ("local/", false),
            ("local", false),
            ("/local/x", false),
            ("./local/../local/x", false),
            ("${NOMAD_TASK_DIR}", false),
            ("${NOMAD_TASK_DIR}/bin", false),
            ("${NOMAD_TASK_DIR}/../secrets", true),
            ("local/${meta.dir}", false),
            ("${meta.dir}", false),
            ("", true),
            ("bin", true),
            ("secrets/x", true),
            ("local/../secrets", true),
            ("../alloc/data", true),
            ("${NOMAD_ALLOC_DIR}/data", true),
            ("${NOMAD_SECRETS_DIR}/key", true),
        ] {
            assert_eq!(leads_elsewhere(destination), elsewhere, "{destination}");
        }
    }

    #[test]
    fn tokens_that_end_are_taken_where_they_can_be_renewed() {
        let full = RemoteProvider { refresh: true, ..RemoteProvider::default() };
        let no_refresh = RemoteProvider::default();
        let no_signals = RemoteProvider { no_signals: true, ..full.clone() };
        let no_files = RemoteProvider { no_files: true, ..RemoteProvider::default() };
        let identity = |env, file, ttl, change_mode: &str| Identity {
            name: "aws".into(),
            env,
            file,
            ttl: model::GoDuration::from_secs(ttl),
            change_mode: change_mode.into(),
            ..Identity::default()
        };
        for (identity, provider, part) in [
            (identity(true, true, 0, "restart"), &no_refresh, ""),
            (identity(false, true, 60, "noop"), &full, ""),
            (identity(false, true, 60, ""), &full, ""),
            (identity(false, true, 60, "signal"), &full, ""),
            (identity(false, false, 60, "restart"), &no_files, ""),
            (identity(true, false, 0, "noop"), &no_files, ""),
            (identity(false, true, 0, "noop"), &no_files, "deliver identity \"aws\": file:"),
            (identity(true, true, 60, "noop"), &full, "deliver identity \"aws\": ttl with env:"),
            (
                identity(false, true, 60, "noop"),
                &no_refresh,
                "deliver identity \"aws\": ttl: this runtime renews no files",
            ),
            (identity(false, true, 60, "restart"), &full, "deliver identity \"aws\": change_mode restart:"),
            (identity(false, true, 60, "signal"), &no_signals, "deliver identity \"aws\": change_mode signal:"),
        ] {
            let task = Task { identities: vec![identity], ..Task::default() };
            let said = undeliverable(&task, provider);
            assert_eq!(said.is_empty(), part.is_empty(), "{part:?}: {said:?}");
            assert!(said.iter().all(|why| why.contains(part)), "{part:?}: {said:?}");
        }
    }
}
