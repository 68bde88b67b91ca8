//! What tasks print, what they find in their environment, and what the plugin itself logs.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::check::table;
use crate::kit::{TaskKit, Work};
use crate::lab::Lab;
use crate::outcome::{Outcome, failed, hold, not_applicable};
use crate::task::{Log, Prepared, TASK_MARK, ended_by_itself, excerpt};

table! {
    "logs/complete", "F", "what a task prints arrives complete and in order on both streams, wherever the driver \
        delivers it",
        "lines are missing in the logs just when they are needed", complete;
    "logs/after-exit", "F", "the last words of a task that ends at once arrive",
        "of a task that fails at its start the reason is lost", after_exit;
    "logs/fifos-untouched", "F", "a driver that declares disable_log_collection does not open the fifos",
        "nobody reads them then: the task blocks at its start", fifos_untouched;
    "logs/disabled", "F", "with /dev/null as both paths a task starts and ends as ever",
        "jobs that switch logs off do not start", disabled;
    "env/given", "H45", "a task sees the variables that it was given",
        "workloads miss their addresses and secrets", given;
    "env/clean", "H45", "a task sees neither the plugin's cookie nor any PLUGIN_ variable, also with an empty \
        environment",
        "a workload that is itself a plugin host or plugin misbehaves, and knows what is none of its business", clean;
    "env/sigpipe", "H45", "a task starts with SIGPIPE at its default",
        "pipelines in workloads do not end when their reader does, and programs fail with write errors", sigpipe;
    "log/hclog", "H45", "every line of the plugin on standard error is one that agents can parse",
        "logs lose their level; a line with a wrong type ends Nomad's agent", hclog;
}

async fn complete(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Prints).await?;
    lab.wait(&plugin, &task.id).await?;
    let wanted = TaskKit::text();
    for (log, name) in [(&task.out, "output"), (&task.err, "error")] {
        if lab.until("", || log.text().len() >= wanted.len()).await.is_err() {
            let seen = log.text();
            let (lines, all) = (seen.lines().count(), wanted.lines().count());
            return failed(format!(
                "of {all} lines on standard {name} {lines} arrived; they begin with {:?}",
                excerpt(&seen)
            ));
        }
        let seen = log.text();
        if seen != wanted {
            let at = seen.lines().zip(wanted.lines()).position(|(seen, wanted)| seen != wanted);
            return failed(format!(
                "standard {name} differs from line {} on: {:?}",
                at.unwrap_or_default() + 1,
                excerpt(&seen)
            ));
        }
    }
    lab.destroy(&plugin, &task.id).await
}

async fn after_exit(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let task = lab.task(&plugin, Work::Script("echo last words; exit 7")).await?;
    ended_by_itself(&lab.wait(&plugin, &task.id).await?)?;
    lab.destroy(&plugin, &task.id).await?;
    lab.printed(&task, "last words\n").await.map(drop)
}

async fn fifos_untouched(lab: &Arc<Lab>) -> Outcome {
    if !lab.profile().capabilities.disable_log_collection {
        return not_applicable("the driver leaves its tasks' logs to the host");
    }
    let plugin = lab.plugin().await?;
    let Prepared { config, .. } = lab.prepare(Work::Prints)?;
    // Read as a fifo although nobody should write.
    let paths = [config.stdout_path.clone(), config.stderr_path.clone()];
    let mut readers = Vec::new();
    for path in &paths {
        let path = std::path::Path::new(path);
        let made = std::fs::remove_file(path).and_then(|()| Log::fifo(path));
        match made {
            Ok(log) => readers.push(log),
            Err(error) => return failed(format!("no fifo at {}: {error}", path.display())),
        }
    }
    let (out, err) = (readers[0].clone(), readers[1].clone());
    let task = lab.start(&plugin, Prepared { config, out, err }).await?;
    lab.wait(&plugin, &task.id).await?;
    tokio::time::sleep(Duration::from_millis(50)).await;
    hold!(!task.out.opened() && !task.err.opened(), "the driver opened a fifo although it says to collect logs itself");
    lab.destroy(&plugin, &task.id).await
}

async fn disabled(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let mut prepared = lab.prepare(Work::Exits)?;
    (prepared.config.stdout_path, prepared.config.stderr_path) = ("/dev/null".into(), "/dev/null".into());
    if let Some(log) = &mut prepared.config.drover_log {
        log.disabled = true;
    }
    let task = lab.start(&plugin, prepared).await?;
    ended_by_itself(&lab.wait(&plugin, &task.id).await?)?;
    lab.destroy(&plugin, &task.id).await
}

/// The environment that a task prints.
async fn environment(lab: &Lab, change: impl Fn(&mut Prepared)) -> Outcome<Vec<String>> {
    let plugin = lab.plugin().await?;
    let mut prepared = lab.prepare(Work::Script("cat /proc/self/environ | tr '\\0' '\\n'; echo end-of-environment"))?;
    change(&mut prepared);
    let task = lab.start(&plugin, prepared).await?;
    lab.wait(&plugin, &task.id).await?;
    let text = lab.printed(&task, "end-of-environment").await?;
    lab.destroy(&plugin, &task.id).await?;
    Ok(text.lines().map(str::to_owned).collect())
}

async fn given(lab: &Arc<Lab>) -> Outcome {
    const WANTED: &str = "WITH BLANKS=\"quoted\" $HOME é";
    let odd = |prepared: &mut Prepared| {
        prepared.config.env.insert("GIVEN".into(), WANTED.into());
    };
    let seen = environment(lab, odd).await?;
    hold!(seen.contains(&format!("GIVEN={WANTED}")), "GIVEN={WANTED} is not in the environment {seen:?}");
    hold!(seen.iter().any(|line| line.starts_with(TASK_MARK)), "{TASK_MARK} is not in the environment {seen:?}");
    Ok(())
}

async fn clean(lab: &Arc<Lab>) -> Outcome {
    let as_it_is: fn(&mut Prepared) = |_| ();
    let emptied: fn(&mut Prepared) = |prepared| prepared.config.env.clear();
    for (what, change) in [("with its environment", as_it_is), ("with an empty environment", emptied)] {
        let seen = environment(lab, change).await?;
        let ours = |line: &&String| line.starts_with("PLUGIN_") || line.starts_with("NOMAD_PLUGIN_MAGIC_COOKIE");
        let leaked: Vec<&String> = seen.iter().filter(ours).collect();
        hold!(leaked.is_empty(), "a task {what} sees {leaked:?}");
    }
    Ok(())
}

async fn sigpipe(lab: &Arc<Lab>) -> Outcome {
    const SIGPIPE: u32 = 13;
    let plugin = lab.plugin().await?;
    let task = lab
        .task(
            &plugin,
            Work::Script(
                "while read -r name mask; do case $name in SigIgn:|SigBlk:) echo $name $mask;; esac; done < \
                    /proc/self/status; echo end",
            ),
        )
        .await?;
    lab.wait(&plugin, &task.id).await?;
    let text = lab.printed(&task, "end").await?;
    for line in text.lines().filter(|line| line.starts_with("Sig")) {
        let Some(mask) = line.split(' ').nth(1).and_then(|mask| u64::from_str_radix(mask, 16).ok()) else {
            return failed(format!("the task says {line:?}"));
        };
        hold!(mask & (1 << (SIGPIPE - 1)) == 0, "the task starts with SIGPIPE ignored or blocked: {line}");
    }
    hold!(text.contains("SigIgn:"), "the task could not tell how it treats signals: {text:?}");
    lab.destroy(&plugin, &task.id).await
}

async fn hclog(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    // Ordinary life, and some trouble to log.
    if let Ok(prepared) = lab.prepare(Work::Exits) {
        let task = lab.start(&plugin, prepared).await?;
        lab.wait(&plugin, &task.id).await?;
        lab.destroy(&plugin, &task.id).await?;
    }
    if let Ok(prepared) = lab.prepare(Work::Fails) {
        let request = driver_proto::driver::StartTaskRequest { task: Some(prepared.config) };
        drop(lab.answer(&plugin, "StartTask", plugin.driver().start_task(request)).await?);
    }
    drop(
        lab.answer(&plugin, "SetConfig", plugin.base().set_config(driver_proto::base::SetConfigRequest::default()))
            .await?,
    );
    let _ =
        tokio::time::timeout(lab.pace().patience, plugin.controller().shutdown(driver_proto::plugin::Empty {})).await;
    plugin.process.ended(lab.pace().patience).await;
    plugin.process.drained(lab.pace().limit(Duration::from_secs(1))).await;
    for line in plugin.process.stderr.text().lines().filter(|line| !line.trim().is_empty()) {
        if let Err(why) = parse(line) {
            return failed(format!("{why}: {}", excerpt(line)));
        }
    }
    Ok(())
}

/// What agents need of a line.
fn parse(line: &str) -> Result<(), &'static str> {
    if line.len() >= 64 << 10 {
        return Err("a line is longer than 64 KiB");
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else {
        return Err("a line is no JSON object");
    };
    let text = |key: &str| fields.get(key).map(|value| value.as_str());
    let level = match text("@level") {
        Some(Some(level)) => level.to_lowercase(),
        _ => return Err("@level is missing or no string"),
    };
    if !["trace", "debug", "info", "warn", "error"].contains(&level.as_str()) {
        return Err("@level is none of trace, debug, info, warn, error");
    }
    if !matches!(text("@message"), Some(Some(_))) {
        return Err("@message is missing or no string");
    }
    match text("@timestamp") {
        Some(Some(time)) if is_timestamp(time) => Ok(()),
        Some(Some(_)) => Err("@timestamp is not date, T, time with six digits after the point, and zone"),
        _ => Err("@timestamp is missing or no string"),
    }
}

fn is_timestamp(text: &str) -> bool {
    const SHAPE: &str = "0000-00-00T00:00:00.000000";
    if !text.is_ascii() || text.len() <= SHAPE.len() {
        return false;
    }
    let (time, zone) = text.split_at(SHAPE.len());
    let fits = |text: &str, shape: &str| {
        text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(t, s)| if s == b'0' { t.is_ascii_digit() } else { t == s })
    };
    fits(time, SHAPE) && (zone == "Z" || fits(zone, "+00:00") || fits(zone, "-00:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_taken_or_refused_for_their_reason() {
        let line = |level: &str, message: &str, time: &str| {
            format!(r#"{{"@level":{level},"@message":{message},"@timestamp":{time}}}"#)
        };
        let time = r#""2026-01-02T03:04:05.123456Z""#;
        let zone = r#""2026-01-02T03:04:05.123456+02:00""#;
        let cases = [
            (line(r#""info""#, r#""m""#, time), Ok(())),
            (line(r#""WARN""#, r#""m""#, zone), Ok(())),
            ("plain".into(), Err("JSON")),
            (line("3", r#""m""#, time), Err("@level")),
            (line(r#""loud""#, r#""m""#, time), Err("@level")),
            (line(r#""info""#, "3", time), Err("@message")),
            (line(r#""info""#, r#""m""#, r#""2026-01-02T03:04:05Z""#), Err("six digits")),
            (line(r#""info""#, r#""m""#, r#""2026-01-02T03:04:05.123456789Z""#), Err("six digits")),
            (line(r#""info""#, r#""m""#, "3"), Err("@timestamp")),
            (line(r#""info""#, &format!("\"{}\"", "x".repeat(70_000)), time), Err("64 KiB")),
        ];
        for (line, wanted) in cases {
            match (parse(&line), wanted) {
                (Ok(()), Ok(())) => {}
                (Err(seen), Err(wanted)) => assert!(seen.contains(wanted), "{line}: {seen}"),
                (seen, wanted) => panic!("{line}: {seen:?}, expected {wanted:?}"),
            }
        }
    }
}
