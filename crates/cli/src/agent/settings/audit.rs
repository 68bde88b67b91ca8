//! The block `audit`: from the configuration to sinks and filters.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use server_http::{Filter, Guarantee, Stage};

use super::{
    super::{
        audit::{AuditSettings, SinkSettings, TargetSettings},
        config::{Audit, AuditFilter, AuditSink},
        log_file::Rotation,
    },
    reader::Reader,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// What the block says. `None` where there is no audit log, or something is wrong.
pub(super) fn read(r: &mut Reader, block: &Audit, data_dir: &Path) -> Option<AuditSettings> {
    if block.enabled != Some(true) {
        for (name, given) in [("audit.sink", !block.sink.is_empty()), ("audit.filter", !block.filter.is_empty())] {
            if given && block.enabled.is_none() {
                r.idle(name, "the audit log is off: audit.enabled is not true");
            }
        }
        return None;
    }
    let own = [("audit".to_owned(), AuditSink::default())].into();
    let sinks = if block.sink.is_empty() { &own } else { &block.sink };
    let mut read = AuditSettings { sinks: Vec::new(), filters: Vec::new() };
    for (name, block) in sinks {
        let sink = sink(r, name, block, data_dir);
        if read.sinks.iter().any(|other| path(&other.target) == path(&sink.target)) {
            r.wrong(format!("audit.sink {name:?}: another sink has the same path"));
        }
        read.sinks.push(sink);
    }
    read.filters = block.filter.iter().map(|(name, block)| filter(r, name, block)).collect();
    Some(read)
}

fn path(target: &TargetSettings) -> &Path {
    match target {
        TargetSettings::File(rotation, _) => &rotation.path,
        TargetSettings::Socket(path) => path,
    }
}

fn sink(r: &mut Reader, name: &str, block: &AuditSink, data_dir: &Path) -> SinkSettings {
    let of = |setting: &str| format!("audit.sink {name:?}: {setting}");
    let guarantee = match block.delivery_guarantee.as_deref() {
        None | Some("" | "enforced") => Guarantee::Enforced,
        Some("best-effort") => Guarantee::BestEffort,
        Some(other) => {
            r.wrong(of(&format!("delivery_guarantee must be enforced or best-effort, it is {other:?}")));
            Guarantee::Enforced
        }
    };
    if let Some(other) = block.format.as_deref().filter(|format| !["", "json"].contains(format)) {
        r.wrong(of(&format!("format must be json, it is {other:?}")));
    }
    let given = block.path.as_deref().filter(|path| !path.is_empty()).map(PathBuf::from);
    if let Some(path) = given.as_ref().filter(|path| !path.is_absolute()) {
        r.wrong(of(&format!("path must be absolute, it is {:?}", path.display().to_string())));
    }
    let target = match block.kind.as_deref() {
        None | Some("" | "file") => {
            let path = given.unwrap_or_else(|| data_dir.join("audit/audit.log"));
            if path.is_dir() {
                r.wrong(of(&format!("path must be a file, {} is a directory", path.display())));
            }
            let age = r.duration(&of("rotate_duration"), block.rotate_duration.as_deref(), DAY);
            let keep = block.rotate_max_files.filter(|n| *n > 0).map(|n| n as usize);
            let text = block.mode.as_deref().filter(|mode| !mode.is_empty()).unwrap_or("0600");
            let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777 && mode & 0o600 == 0o600);
            let mode = mode.unwrap_or_else(|| {
                let must = "must be octal permissions of a file that its owner reads and writes, such as \"0600\"";
                r.wrong(of(&format!("mode {must}, it is {text:?}")));
                0o600
            });
            TargetSettings::File(Rotation { path, age, bytes: block.rotate_bytes.unwrap_or(0), keep }, mode)
        }
        Some("socket") => {
            for (setting, given) in [
                ("mode", block.mode.is_some()),
                ("rotate_bytes", block.rotate_bytes.is_some()),
                ("rotate_duration", block.rotate_duration.is_some()),
                ("rotate_max_files", block.rotate_max_files.is_some()),
            ] {
                if given {
                    r.wrong(of(&format!("{setting} is for files; leave it out of a sink of type socket")));
                }
            }
            if given.is_none() {
                r.wrong(of("path is missing: name the unix socket that somebody listens on"));
            }
            TargetSettings::Socket(given.unwrap_or_default())
        }
        Some(other) => {
            r.wrong(of(&format!("type must be file or socket, it is {other:?}")));
            TargetSettings::Socket(PathBuf::new())
        }
    };
    SinkSettings { name: name.to_owned(), guarantee, target }
}

fn filter(r: &mut Reader, name: &str, block: &AuditFilter) -> Filter {
    let of = |setting: &str| format!("audit.filter {name:?}: {setting}");
    if let Some(other) = block.kind.as_deref().filter(|kind| !["", "HTTPEvent"].contains(kind)) {
        r.wrong(of(&format!("type must be HTTPEvent, it is {other:?}")));
    }
    for (setting, list) in
        [("endpoints", &block.endpoints), ("stages", &block.stages), ("operations", &block.operations)]
    {
        if list.is_empty() {
            r.wrong(of(&format!("{setting} is empty: the filter would leave out nothing; \"*\" stands for all")));
        }
    }
    let known = [Stage::Received.name(), Stage::Complete.name()];
    for stage in block.stages.iter().filter(|stage| *stage != "*" && !known.contains(&stage.as_str())) {
        r.wrong(of(&format!("stages holds {}, {} or \"*\", not {stage:?}", known[0], known[1])));
    }
    Filter { endpoints: block.endpoints.clone(), stages: block.stages.clone(), operations: block.operations.clone() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::agent::{AgentArgs, config::typed, settings::settings};

    fn of(audit: Value) -> Result<Option<AuditSettings>, String> {
        let tree = json!({"data_dir": "/x", "server": {"enabled": true}, "audit": audit});
        let said = |mistakes: Vec<crate::agent::config::Mistake>| {
            mistakes.into_iter().map(|m| m.0).collect::<Vec<_>>().join("\n")
        };
        let file = typed(tree).map_err(said)?;
        settings(file, &AgentArgs::default(), None).map(|settings| settings.audit).map_err(said)
    }

    #[test]
    fn a_minimal_block_writes_to_the_data_directory() {
        assert_eq!(of(json!({"enabled": false, "sink": {"x": {}}})), Ok(None));
        assert_eq!(of(json!({})), Ok(None));
        let usual = of(json!({"enabled": true})).expect("fine").expect("an audit log");
        let file = Rotation { path: "/x/audit/audit.log".into(), age: DAY, bytes: 0, keep: None };
        let sink = SinkSettings {
            name: "audit".into(),
            guarantee: Guarantee::Enforced,
            target: TargetSettings::File(file, 0o600),
        };
        assert_eq!(usual, AuditSettings { sinks: vec![sink], filters: Vec::new() });
    }

    #[test]
    fn every_setting_counts() {
        let given = json!({
            "enabled": true,
            "sink": {
                "a": {"type": "file", "delivery_guarantee": "best-effort", "format": "json", "path": "/l/a",
                    "mode": "0640", "rotate_bytes": 100, "rotate_duration": "1h", "rotate_max_files": 3},
                "b": {"type": "socket", "path": "/run/s"}
            },
            "filter": {"f": {"type": "HTTPEvent", "endpoints": ["/v1/metrics"], "stages": ["*"], "operations": ["GET"]}}
        });
        let read = of(given).expect("fine").expect("an audit log");
        let file = Rotation { path: "/l/a".into(), age: Duration::from_secs(3600), bytes: 100, keep: Some(3) };
        assert_eq!(read.sinks[0].target, TargetSettings::File(file, 0o640));
        assert_eq!(read.sinks[1].target, TargetSettings::Socket("/run/s".into()));
        let guarantees = [read.sinks[0].guarantee, read.sinks[1].guarantee];
        assert_eq!(guarantees, [Guarantee::BestEffort, Guarantee::Enforced]);
        assert_eq!(read.filters[0].operations, ["GET"]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let sink = |block: Value| of(json!({"enabled": true, "sink": {"s": block}})).expect_err("wrong");
        let filter = |block: Value| of(json!({"enabled": true, "filter": {"f": block}})).expect_err("wrong");
        for (error, part) in [
            (sink(json!({"type": "syslog"})), "sink \"s\": type must be file or socket, it is \"syslog\""),
            (sink(json!({"delivery_guarantee": "maybe"})), "delivery_guarantee must be enforced or best-effort"),
            (sink(json!({"format": "log"})), "format must be json"),
            (sink(json!({"path": "a.log"})), "path must be absolute"),
            (sink(json!({"path": "/tmp"})), "/tmp is a directory"),
            (sink(json!({"mode": "rw"})), "mode must be octal"),
            (sink(json!({"mode": "0400"})), "mode must be octal"),
            (sink(json!({"rotate_duration": "0s"})), "rotate_duration must be longer than 0"),
            (sink(json!({"type": "socket"})), "path is missing"),
            (sink(json!({"type": "socket", "path": "/s", "rotate_bytes": 1})), "rotate_bytes is for files"),
            (filter(json!({"type": "RPCEvent"})), "type must be HTTPEvent"),
            (filter(json!({"endpoints": ["*"], "stages": ["*"]})), "operations is empty"),
            (filter(json!({"stages": ["Sometime"]})), "not \"Sometime\""),
            (
                of(json!({"enabled": true, "sink": {"a": {}, "b": {}}})).expect_err("the same path"),
                "audit.sink \"b\": another sink has the same path",
            ),
        ] {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}
