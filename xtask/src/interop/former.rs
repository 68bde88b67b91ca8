//! What runs that were killed have left: a run that ends by itself, well or badly, leaves nothing.

use std::{fs, path::Path};

use super::{dockerd::Daemon, ssh};
use crate::{chaos, local};

/// The check and the process of a directory's name, `drover-interop-CHECK-PID`.
fn parts(name: &str) -> Option<(&str, u32)> {
    let (check, pid) = name.strip_prefix("drover-interop-")?.rsplit_once('-')?;
    Some((check, pid.parse().ok()?))
}

/// Ends and removes what belongs to runs whose process is gone.
pub(crate) fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((check, pid)) = name.to_str().and_then(parts) else { continue };
        if Path::new("/proc").join(pid.to_string()).exists() {
            continue;
        }
        eprintln!("interop: removing what a run that was killed has left: {}", entry.path().display());
        match check {
            "ssh" => ssh::sweep(pid),
            "chaosremote" => chaos::remote::sweep(pid),
            of_cluster if of_cluster.starts_with("chaoscluster") => chaos::cluster::sweep(pid),
            engine => Daemon::sweep(engine, pid),
        }
        local::remove(&entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::parts;

    #[test]
    fn only_directories_of_runs_are_taken() {
        assert_eq!(parts("drover-interop-docker-n1-77"), Some(("docker-n1", 77)));
        assert_eq!(parts("drover-interop-nomad-1.9-5"), Some(("nomad-1.9", 5)));
        for other in ["drover-interop-ssh", "drover-bench-drover-5", "drover-interop-ssh-", "drover-interop-ssh-5x"] {
            assert_eq!(parts(other), None, "{other}");
        }
    }
}
