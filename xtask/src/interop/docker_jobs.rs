//! Jobs of the driver `docker` that checks submit, and what is seen of them.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{dockerd::IMAGE, job::Job};

/// Counts for ever, twenty lines a second, and says who asks for it.
pub(super) const COUNTER: &str =
    "trap 'echo got-usr1' USR1; i=0; while true; do i=$((i+1)); echo line-$i; busybox usleep 50000; done";

/// The numbers of the counter's lines.
pub(super) fn numbers(text: &str) -> Vec<u64> {
    text.lines().filter_map(|l| l.strip_prefix("line-")?.parse().ok()).collect()
}

/// The numbers of the counter are all there, in order and once.
pub(super) fn none_lost_or_doubled(text: &str) -> Result<()> {
    let seen = numbers(text);
    ensure!(seen.iter().copied().eq(1..=seen.len() as u64), "lines are missing or there twice: {seen:?}");
    Ok(())
}

/// A job that is tried once, with the image of every check where it names none.
pub(super) fn job(id: &str, kind: &str, mut config: Value) -> Value {
    if config.get("image").is_none() {
        config["image"] = IMAGE.into();
    }
    let job = Job::new(id, kind, "docker", config).once();
    if kind == "service" { job.undeployed() } else { job }.body()
}
