//! What tasks will need of the cluster, looked at for `drover driver doctor`.

use aws::doctor::{logs, no_place, right};
use driver_sdk::Finding;

use crate::api::{Api, ClusterSeen, Listing};
use crate::marks::{self, acknowledged_tag};

/// Id of a task that there is not: what may be done to it may be done to others, and nothing comes of it.
const NOBODY: &str = "00000000000000000000000000000000";

/// Looks at everything; starts nothing.
pub(crate) async fn examine(api: &Api) -> Vec<Finding> {
    let cluster = match api.cluster().await {
        Ok(cluster) => cluster,
        Err(why) => return no_place("cluster", "cluster", why),
    };
    let nobody = format!("{}/{NOBODY}", cluster.arn.replacen(":cluster/", ":task/", 1));
    let mut findings = seen(&cluster);
    findings.extend([
        right("ecs:ListTasks", api.list(Listing::Wanted, None, 1).await.err(), None),
        right("ecs:DescribeTasks", api.describe(vec![nobody.clone()]).await.err(), None),
        right("ecs:StopTask", api.stop(&nobody, "drover driver doctor").await.err(), None),
        right("ecs:TagResource", api.tag(&nobody, marks::tags([acknowledged_tag()])).await.err(), None),
        logs(&api.session, "drover-doctor", NOBODY).await,
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

#[cfg(test)]
mod tests {
    use driver_sdk::Verdict;

    use super::*;

    #[test]
    fn a_cluster_that_cannot_run_anything_is_told() {
        let cluster = |status: &str, instances| ClusterSeen { arn: "a".into(), status: status.into(), instances };
        let verdicts = |seen: Vec<Finding>| seen.into_iter().map(|finding| finding.verdict).collect::<Vec<_>>();
        assert_eq!(verdicts(seen(&cluster("ACTIVE", 2))), [Verdict::Pass]);
        assert_eq!(verdicts(seen(&cluster("INACTIVE", 0))), [Verdict::Fail, Verdict::Warning]);
    }
}
