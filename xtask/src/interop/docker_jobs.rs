//! Jobs of the driver `docker` that checks submit, and what is seen of them.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{dockerd::IMAGE, job::Job};

/// Counts for ever, twenty lines a second, and says who asks for it.
pub(super) const COUNTER: &str =
    "trap 'echo got-usr1' USR1; i=0; while true; do i=$((i+1)); echo line-$i; busybox usleep 50000; done";

/// The numbers of the counter's lines that are whole: the last one may have been read while it was written.
pub(super) fn numbers(text: &str) -> Vec<u64> {
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|l| l.strip_prefix("line-")?.parse().ok()).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_half_there_is_neither_lost_nor_doubled() {
        assert!(none_lost_or_doubled("got-usr1\nline-1\nline-2\nlin").is_ok());
        assert!(none_lost_or_doubled(&(1..=12).map(|n| format!("line-{n}\n")).collect::<String>()).is_ok());
        let ten: String = (1..=10).map(|n| format!("line-{n}\n")).collect();
        assert!(none_lost_or_doubled(&(ten.clone() + "line-1")).is_ok(), "11 is on its way");
        assert!(none_lost_or_doubled(&(ten.clone() + "line-1\n")).is_err(), "1 is there twice");
        assert!(none_lost_or_doubled(&(ten + "line-12\n")).is_err(), "11 is lost");
        assert!(numbers("line-1").is_empty());
    }
}
