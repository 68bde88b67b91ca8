//! What tasks find in their directories: artifacts and volumes. What can be known before a node is chosen; the rest
//! is for the node to say.

use crate::{
    job::{TaskGroup, VolumeRequest},
    task::{Artifact, Task, VolumeMount},
    volume,
};

use super::problems::ValidationErrors;

/// Getters that are refused, with what to use instead.
const NOT_FETCHED: [(&str, &str); 3] = [
    ("hg::", "artifacts are not fetched by hg: use git, or an archive by https"),
    ("gcs::", "artifacts are not fetched by gcs: use the https address of the object, signed if it is not public"),
    ("gs://", "artifacts are not fetched by gcs: use the https address of the object, signed if it is not public"),
];

/// Type and hexadecimal digits of checksums.
const CHECKSUMS: [(&str, usize); 4] = [("md5", 32), ("sha1", 40), ("sha256", 64), ("sha512", 128)];

pub(super) fn check_volumes(g: &TaskGroup, e: &mut ValidationErrors) {
    for (name, request) in &g.volumes {
        let VolumeRequest { kind, source, access_mode, attachment_mode, mount_options, per_alloc, sticky, .. } =
            request;
        e.when(!matches!(kind.as_str(), "host" | "csi"), || {
            format!("volume {name:?} has unrecognised type {kind:?}: there are host and csi")
        });
        e.when(source.is_empty(), || format!("volume {name:?} has an empty source"));
        if kind != "host" {
            continue;
        }
        for (what, mode, known) in [
            ("access_mode", access_mode, &volume::ACCESS_MODES[..]),
            ("attachment_mode", attachment_mode, &volume::ATTACHMENT_MODES[..]),
        ] {
            e.when(!mode.is_empty() && !known.contains(&mode.as_str()), || {
                format!("volume {name:?}: {what} {mode:?} is none of host volumes: there are {}", known.join(", "))
            });
        }
        e.when(access_mode == volume::READER_ONLY && !request.read_only, || {
            format!("volume {name:?}: access_mode {access_mode:?} needs read_only = true")
        });
        e.when(mount_options.is_some(), || format!("volume {name:?}: a host volume cannot have mount_options"));
        e.when(*sticky && *per_alloc, || format!("volume {name:?} cannot be both sticky and per_alloc"));
        e.when(*per_alloc && uses_canaries(g), || {
            format!("volume {name:?}: per_alloc and canaries exclude each other: a canary has the index of another")
        });
    }
}

fn uses_canaries(g: &TaskGroup) -> bool {
    g.update.as_ref().is_some_and(|update| update.canary.is_some_and(|canaries| canaries > 0))
}

pub(super) fn check_task(g: &TaskGroup, t: &Task, e: &mut ValidationErrors) {
    for (n, artifact) in t.artifacts.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        check_artifact(t, artifact, &mut inner);
        e.part(format!("Artifact {} validation failed", n + 1), inner);
    }
    for (n, mount) in t.volume_mounts.iter().enumerate() {
        let mut inner = ValidationErrors::default();
        check_mount(g, mount, &mut inner);
        e.part(format!("Volume Mount ({n}) validation failed"), inner);
    }
}

/// Values that only the node knows are its to judge.
fn known(text: &str) -> bool {
    !text.contains("${")
}

fn check_artifact(t: &Task, a: &Artifact, e: &mut ValidationErrors) {
    let Artifact { source, options, headers, mode, insecure: _, destination, chown } = a;
    let source = source.as_deref().unwrap_or_default();
    e.when(source.is_empty(), || "source must be specified".to_owned());
    if let Some((_, why)) = NOT_FETCHED.iter().find(|(prefix, _)| source.starts_with(prefix)) {
        e.text(*why);
    }
    let mode = mode.as_deref().unwrap_or_default();
    e.when(!matches!(mode, "" | "any" | "file" | "dir"), || {
        format!("invalid mode {mode:?}; must be one of: any, file, dir")
    });
    let destination = destination.as_deref().unwrap_or_default();
    e.when(known(destination) && escapes(destination), || {
        format!("destination {destination:?} leaves the directories of the task")
    });
    e.when(*chown && t.user.is_empty(), || {
        "chown gives the files to the task's user, and the task names none".to_owned()
    });
    if let Some(checksum) = options.get("checksum").filter(|c| known(c) && !c.is_empty()) {
        check_checksum(checksum, e);
    }
    let http = ["http://", "https://", "http::", "https::"].iter().any(|prefix| source.starts_with(prefix));
    e.when(!headers.is_empty() && known(source) && !http, || {
        "headers are sent with http and https sources only".to_owned()
    });
}

fn check_checksum(checksum: &str, e: &mut ValidationErrors) {
    let (kind, value) = checksum.split_once(':').map_or((None, checksum), |(kind, value)| (Some(kind), value));
    let length = match kind {
        Some("file") => return,
        Some(kind) => CHECKSUMS.iter().find(|(name, _)| *name == kind).map(|(_, length)| *length),
        None => CHECKSUMS.iter().map(|(_, length)| *length).find(|length| *length == value.len()),
    };
    let hexadecimal = value.bytes().all(|b| b.is_ascii_hexdigit());
    e.when(length != Some(value.len()) || !hexadecimal, || {
        format!(
            "checksum {checksum:?} must be TYPE:HEX in full, with type md5, sha1, sha256, sha512, or file:ADDRESS \
            of a list"
        )
    });
}

/// Goes a relative destination above the allocation's directory, which is one above the task's?
fn escapes(destination: &str) -> bool {
    let mut depth = 1_i32;
    destination.split('/').any(|part| {
        depth += match part {
            "" | "." => 0,
            ".." => -1,
            _ => 1,
        };
        depth < 0
    })
}

fn check_mount(g: &TaskGroup, m: &VolumeMount, e: &mut ValidationErrors) {
    let VolumeMount { volume, destination, read_only: _, propagation_mode, selinux_label: _ } = m;
    let volume = volume.as_deref().unwrap_or_default();
    e.when(known(volume) && !g.volumes.contains_key(volume), || format!("references undefined volume {volume:?}"));
    e.when(destination.as_deref().unwrap_or_default().is_empty(), || "destination must be specified".to_owned());
    let mode = propagation_mode.as_deref().unwrap_or_default();
    e.when(known(mode) && !matches!(mode, "" | "private" | "host-to-task" | "bidirectional"), || {
        format!("unknown propagation mode {mode:?}: there are private, host-to-task and bidirectional")
    });
}
