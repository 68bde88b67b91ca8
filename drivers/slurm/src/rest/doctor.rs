//! What tasks will need of slurmrestd, looked at for `drover driver doctor`.

use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::SystemTime;

use driver_sdk::Finding;

use super::http::Endpoint;
use super::{Reached, Rest};

/// A token that is valid for less than this, in seconds, is told as a warning.
const SOON: i64 = 3600;
/// How far the controller's clock may differ, in seconds.
const CLOCKS_APART: u64 = 5;

/// Looks at slurmrestd, the token, the user and the clock. `uid` is the number of the agent's user.
pub(crate) async fn examine(rest: &Rest, uid: u32) -> Vec<Finding> {
    let mut findings = Vec::new();
    let token = match rest.token().await {
        Ok(token) => token,
        Err(why) => {
            let remedy = "let the user of the agent read it, and renew it by `scontrol token`";
            return vec![Finding::fail("token", why, remedy)];
        }
    };
    if let Some(token) = &token {
        findings.push(validity(Rest::valid_for(token, SystemTime::now())));
    }
    findings.extend(rest.config.token_file.as_deref().and_then(readable));
    if let (Endpoint::Tcp { host, .. }, true) = (&rest.endpoint, token.is_some())
        && !local(host)
    {
        let remedy = "put TLS before slurmrestd and write https://, or use its socket on this node";
        findings.push(Finding::warning("encryption", format!("the token goes to {host} in the clear"), remedy));
    }
    let reached = rest.reach().await;
    let remedy = "check `rest`, that slurmrestd runs, and its log; drover does not fall back to the commands";
    findings.push(match &reached {
        Ok(reached) => {
            Finding::pass("slurmrestd", format!("{}, {}, Slurm {}", rest.url(), reached.version, reached.release))
        }
        Err(why) => Finding::fail("slurmrestd", why, remedy),
    });
    if let Ok(Reached { version, time, .. }) = &reached {
        findings.push(match version.names_members() {
            true => Finding::pass("job arrays", "they are used"),
            false => Finding::warning(
                "job arrays",
                format!("none: {version} cannot end one job of an array"),
                "start slurmrestd with v0.0.38, or with v0.0.40 or later",
            ),
        });
        findings.extend(time.map(|time| clock(SystemTime::now(), time)));
        let served = rest.served().await.ok().and_then(|served| served.accounting);
        findings.push(match served {
            Some(version) => Finding::pass("accounting", format!("/slurmdb/{version}")),
            None => Finding::warning(
                "accounting",
                "slurmrestd does not serve it: of a task that SIGKILL ended nothing is known after MinJobAge",
                "start slurmrestd with the plugin of slurmdbd; until then such a task counts as ended once its nodes \
                    are heard",
            ),
        });
    }
    let user = rest.user(token.as_deref());
    findings.push(match &user {
        Some(name) => acts_as(name, number_of(name).await, uid),
        // By a socket, slurmrestd takes its own user or the one at the other end.
        None => Finding::pass("user", "the one that slurmrestd takes from the socket"),
    });
    findings
}

/// What others may do with the file of a token.
fn readable(path: &Path) -> Option<Finding> {
    let mode = std::fs::metadata(path).ok()?.permissions().mode() & 0o777;
    (mode & 0o077 != 0).then(|| {
        let remedy = format!("chmod 600 {}", path.display());
        Finding::warning("token_file", format!("others than its owner may use it (mode {mode:04o})"), remedy)
    })
}

fn local(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn validity(seconds: Option<i64>) -> Finding {
    let renew = "renew `token_file` before that: `scontrol token username=USER lifespan=SECONDS`";
    match seconds {
        None => Finding::pass("token", "it does not say how long it is valid"),
        Some(left) if left <= 0 => Finding::fail("token", format!("it expired {} s ago", -left), renew),
        Some(left) if left < SOON => Finding::warning("token", format!("valid for {left} s"), renew),
        Some(left) => Finding::pass("token", format!("valid for {left} s")),
    }
}

fn acts_as(name: &str, number: Option<u32>, uid: u32) -> Finding {
    match number {
        Some(number) if number == uid => Finding::pass("user", format!("{name} ({number})")),
        Some(number) => Finding::fail(
            "user",
            format!("jobs run as {name} ({number}), and the run directories belong to {uid}"),
            "get a token for the user of the agent, or run the agent as that user",
        ),
        None => Finding::warning(
            "user",
            format!("jobs run as {name}, whom this node does not know"),
            "see that it has the number of the agent's user on the compute nodes",
        ),
    }
}

/// The number of a user as this node knows it.
async fn number_of(name: &str) -> Option<u32> {
    let said = tokio::process::Command::new("id").arg("-u").arg("--").arg(name).kill_on_drop(true).output().await;
    String::from_utf8_lossy(&said.ok()?.stdout).trim().parse().ok()
}

fn clock(now: SystemTime, theirs: u64) -> Finding {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    match now.abs_diff(theirs) {
        apart if apart <= CLOCKS_APART => {
            Finding::pass("controller's clock", format!("within {CLOCKS_APART} s of ours"))
        }
        apart => Finding::warning(
            "controller's clock",
            format!("{apart} s from ours: a token may count as expired too early or too late"),
            "let both follow the same time servers",
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn what_will_end_soon_is_told_before() {
        for (left, wanted) in [
            (None, Verdict::Pass),
            (Some(7200), Verdict::Pass),
            (Some(60), Verdict::Warning),
            (Some(0), Verdict::Fail),
            (Some(-5), Verdict::Fail),
        ] {
            assert_eq!(validity(left).verdict, wanted, "{left:?}");
        }
        for (number, wanted) in [(Some(7), Verdict::Pass), (Some(8), Verdict::Fail), (None, Verdict::Warning)] {
            assert_eq!(acts_as("alice", number, 7).verdict, wanted, "{number:?}");
        }
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
        for (theirs, wanted) in [(1004, Verdict::Pass), (994, Verdict::Warning), (1006, Verdict::Warning)] {
            assert_eq!(clock(now, theirs).verdict, wanted, "{theirs}");
        }
        assert!(local("localhost") && local("::1") && local("127.0.0.2") && !local("rest.example"));
    }
}
