//! What tasks will need of the cluster, looked at for `drover driver doctor`.

use driver_sdk::Finding;

use crate::answer::{Meaning, Trouble, What, meaning};
use crate::api::{Api, ClusterSeen, Listing};
use crate::definition::LogPlace;
use crate::marks::acknowledged_tag;

/// Id of a task that there is not: what may be done to it may be done to others, and nothing comes of it.
const NOBODY: &str = "00000000000000000000000000000000";

/// Looks at everything; starts nothing.
pub(crate) async fn examine(api: &Api) -> Vec<Finding> {
    let cluster = match api.cluster().await {
        Ok(cluster) => cluster,
        Err(why) => {
            let remedy = "check `cluster` and `region`, the credentials of the agent's user, and its clock: AWS \
                refuses what is signed some minutes ahead or late";
            return vec![Finding::fail("cluster", why, remedy)];
        }
    };
    let nobody = format!("{}/{NOBODY}", cluster.arn.replacen(":cluster/", ":task/", 1));
    let logs = LogPlace { group: "drover-doctor".into(), region: String::new(), stream: NOBODY.into() };
    let mut findings = seen(&cluster);
    findings.extend([
        right("ecs:ListTasks", api.list(Listing::Live, None, 1).await.err(), None),
        right("ecs:DescribeTasks", api.describe(vec![nobody.clone()]).await.err(), None),
        right("ecs:StopTask", api.stop(&nobody, "drover driver doctor").await.err(), None),
        right("ecs:TagResource", api.tag(&nobody, vec![acknowledged_tag()]).await.err(), None),
        right("logs:GetLogEvents", api.events(&logs, None).await.err(), Some("`drover alloc logs` of its tasks")),
    ]);
    findings
}

fn seen(cluster: &ClusterSeen) -> Vec<Finding> {
    let ClusterSeen { arn, status, instances } = cluster;
    let found = format!("{arn}: {status}");
    let mut findings = vec![match status == "ACTIVE" {
        true => Finding::pass("cluster", found),
        false => Finding::fail("cluster", found, "name a cluster that is active"),
    }];
    if *instances == 0 {
        findings.push(Finding::warning(
            "container instances",
            "none: tasks start on Fargate or by a capacity provider only",
            "register instances for tasks of the launch types EC2 and EXTERNAL",
        ));
    }
    findings
}

/// What a call about nothing says of the right to make it. Rights are looked at before there is anything to find.
fn right(name: &str, trouble: Option<Trouble>, of_use: Option<&str>) -> Finding {
    let what = format!("rights: {name}");
    let Some(why) = trouble else { return Finding::pass(what, "allowed") };
    let denied = match &why.what {
        What::Refused { code, message } => meaning(code, message) == Meaning::Credentials,
        // The cluster has answered before.
        What::NoAnswer(_) => {
            let remedy = format!("look for {name} in the policy of the agent's role");
            return Finding::warning(what, format!("not known: {why}"), remedy);
        }
    };
    match of_use {
        _ if !denied => Finding::pass(what, "allowed"),
        None => Finding::fail(what, why, format!("allow {name} in the policy of the agent's role")),
        Some(of_use) => {
            let remedy = format!("allow {name} in the policy of the agent's role; without it no {of_use}");
            Finding::warning(what, why, remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn only_a_refusal_of_the_credentials_is_a_missing_right() {
        let refused = |code: &str| {
            let what = What::Refused { code: code.into(), message: "the referenced task was not found".into() };
            Some(Trouble { doing: "stop the task", what })
        };
        for (trouble, of_use, verdict) in [
            (None, None, Verdict::Pass),
            (refused("InvalidParameterException"), None, Verdict::Pass),
            (refused("ResourceNotFoundException"), Some("logs"), Verdict::Pass),
            (refused("AccessDeniedException"), None, Verdict::Fail),
            (refused("AccessDeniedException"), Some("logs"), Verdict::Warning),
            (Some(Trouble { doing: "x", what: What::NoAnswer("away".into()) }), None, Verdict::Warning),
        ] {
            let found = right("ecs:StopTask", trouble.clone(), of_use);
            assert_eq!(found.verdict, verdict, "{trouble:?}");
            assert_eq!(found.remedy.is_empty(), verdict == Verdict::Pass, "{found:?}");
        }
    }

    #[test]
    fn a_cluster_that_cannot_run_anything_is_told() {
        let cluster = |status: &str, instances| ClusterSeen { arn: "a".into(), status: status.into(), instances };
        let verdicts = |seen: Vec<Finding>| seen.into_iter().map(|finding| finding.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(seen(&cluster("ACTIVE", 2))), [Verdict::Pass]);
        assert_eq!(verdicts(seen(&cluster("INACTIVE", 0))), [Verdict::Fail, Verdict::Warning]);
    }
}
