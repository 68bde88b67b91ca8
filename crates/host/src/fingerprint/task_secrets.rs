//! Providers of tasks' secrets: the two that every node has, and executables.

use std::{
    io::Read,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use model::secret_rules::{NOMAD, VAULT, attribute};
use node_config::ClientConfig;

use super::facts::Facts;

/// How long an executable may take to say its version.
const PATIENCE: Duration = Duration::from_secs(5);
/// Version of the providers in this program: that of Nomad's.
const BUILT_IN: &str = "1.0.0";

pub(super) fn look(config: &ClientConfig, facts: &mut Facts) {
    for provider in [NOMAD, VAULT] {
        facts.set(attribute(provider), BUILT_IN);
    }
    for entry in std::fs::read_dir(config.secrets_dir()).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let file = entry.path();
        match say(&file).and_then(|said| version(&said)) {
            Ok(_) if [NOMAD, VAULT].contains(&name.as_str()) => {
                tracing::warn!(file = %file.display(), "not used: every node has a provider of that name");
            }
            Ok(version) => facts.set(attribute(&name), version),
            Err(why) => tracing::warn!(file = %file.display(), why, "no provider of secrets"),
        }
    }
}

fn say(file: &Path) -> Result<String, String> {
    let mut command = Command::new(file);
    command.arg("fingerprint").env_clear().env("CPI_OPERATION", "fingerprint");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| format!("it does not start: {e}"))?;
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().map_err(|e| e.to_string())?.is_none() {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("it has not answered for {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut text = String::new();
    // A line, which the pipe buffers.
    let read = child.stdout.take().map(|said| said.take(4096).read_to_string(&mut text));
    read.transpose().map_err(|e| e.to_string())?;
    Ok(text)
}

/// The version in an answer to `fingerprint`.
fn version(said: &str) -> Result<String, String> {
    let said: serde_json::Value = serde_json::from_str(said).map_err(|e| format!("its answer is no JSON: {e}"))?;
    if said["type"] != "secrets" {
        return Err(format!("its answer has type {}, not \"secrets\"", said["type"]));
    }
    let version = said["version"].as_str().filter(|version| !version.is_empty());
    version.map(str::to_owned).ok_or_else(|| "its answer has no version".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_executables() {
        assert_eq!(version(r#"{"type": "secrets", "version": "0.0.1"}"#), Ok("0.0.1".to_owned()));
        for (said, part) in
            [("usage: x", "no JSON"), (r#"{"version": "1"}"#, "type null"), (r#"{"type": "secrets"}"#, "no version")]
        {
            assert!(version(said).expect_err("refused").contains(part), "{said}");
        }
    }
}
