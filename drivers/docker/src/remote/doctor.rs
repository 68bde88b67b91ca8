//! What tasks will need of the engine, looked at for `drover driver doctor`.

use std::time::{Duration, SystemTime};

use driver_sdk::Finding;

use crate::engine::Engine;
use crate::engine::types::{Info, time};

/// A clock that is further off than this is worth a person's attention.
const CLOCKS_APART: Duration = Duration::from_secs(5);

/// Looks at everything; creates nothing.
pub(super) async fn examine(engine: &Engine) -> Vec<Finding> {
    let asked = async {
        let (api, version) = engine.version().await?;
        Ok::<_, crate::engine::EngineError>((api, version, engine.get::<Info>("ask about the engine", "/info").await?))
    };
    match asked.await {
        Ok((api, version, info)) => {
            let found = format!("{} at {}, API {api}", version.version, engine.endpoint());
            let mut findings = vec![Finding::pass("engine", found)];
            findings.extend(told(&info, SystemTime::now()));
            findings
        }
        Err(why) => {
            let remedy = "check that the engine listens at `endpoint`, and `tls` if it asks for certificates";
            vec![Finding::fail("engine", why, remedy)]
        }
    }
}

/// What an engine's description of itself means for tasks.
fn told(info: &Info, now: SystemTime) -> Vec<Finding> {
    let mut findings = Vec::new();
    if info.os_type != "linux" {
        let remedy = "use an engine that runs Linux containers";
        findings.push(Finding::fail("containers", format!("of {}", info.os_type), remedy));
    }
    findings.push(match info.live_restore_enabled {
        true => Finding::pass("live-restore", "on"),
        false => Finding::warning(
            "live-restore",
            "off: tasks end when the engine stops or restarts",
            "set \"live-restore\": true in the engine's daemon.json",
        ),
    });
    if let Some(there) = time(&info.system_time) {
        let apart = now.duration_since(there).unwrap_or_else(|ahead| ahead.duration());
        findings.push(match apart < CLOCKS_APART {
            true => Finding::pass("clock", format!("within {} s", CLOCKS_APART.as_secs())),
            false => Finding::warning(
                "clock",
                format!("the engine's is {} s off", apart.as_secs()),
                "let both machines keep time (chrony, systemd-timesyncd); times of tasks are those of the engine",
            ),
        });
    }
    // The others are about the engine's own network and registries.
    let limits = info.warnings.iter().filter(|text| ["memory", "cpu", "cgroup"].iter().any(|of| text.contains(of)));
    findings.extend(limits.map(|text| {
        let remedy = "let the kernel of that machine have the cgroup controllers; tasks run without that limit";
        Finding::warning("limits", text.trim_start_matches("WARNING: "), remedy)
    }));
    findings
}

#[cfg(test)]
mod tests {
    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn what_an_engine_says_of_itself_is_weighed() {
        let info: Info = serde_json::from_str(
            r#"{"OSType":"linux","LiveRestoreEnabled":true,"SystemTime":"2026-01-01T00:00:10.5Z",
            "Warnings":["WARNING: No swap limit support","WARNING: bridge-nf-call-iptables is disabled"]}"#,
        )
        .expect("an answer");
        let now = time("2026-01-01T00:00:12Z").expect("a time");
        let verdicts = |info: &Info, now| -> Vec<(String, Verdict)> {
            told(info, now).into_iter().map(|finding| (finding.what, finding.verdict)).collect()
        };
        let well = [("live-restore".to_owned(), Verdict::Pass), ("clock".to_owned(), Verdict::Pass)];
        assert_eq!(verdicts(&info, now), well);
        let other = Info {
            os_type: "windows".into(),
            live_restore_enabled: false,
            warnings: vec!["WARNING: No memory limit support".into()],
            ..info
        };
        let late = now + Duration::from_secs(60);
        assert_eq!(
            verdicts(&other, late),
            [
                ("containers".to_owned(), Verdict::Fail),
                ("live-restore".to_owned(), Verdict::Warning),
                ("clock".to_owned(), Verdict::Warning),
                ("limits".to_owned(), Verdict::Warning),
            ]
        );
    }
}
