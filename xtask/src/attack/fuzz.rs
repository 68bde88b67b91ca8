//! Requests of a seed: every path with every method, odd parameters and damaged bodies.

use anyhow::{Context, Result, ensure};

use super::kit::{self, Attack, Dice, Others, ask, both, job, peak_mib, running, text};

pub(super) const ATTACKS: &[Attack] = &[Attack {
    name: "fuzz",
    does: "3,000 requests from a seed: known paths, odd ids and parameters, damaged bodies",
    holds: "each is answered, no handler panics, the agent goes on and is not much larger",
    run: fuzz,
}];

const REQUESTS: usize = 3_000;
const SEED: u64 = 0x5eed_a77a;

const PATHS: &[&str] = &[
    "/v1/jobs",
    "/v1/jobs/parse",
    "/v1/jobs/statuses",
    "/v1/job/{j}",
    "/v1/job/{j}/plan",
    "/v1/job/{j}/scale",
    "/v1/job/{j}/revert",
    "/v1/job/{j}/stable",
    "/v1/job/{j}/dispatch",
    "/v1/job/{j}/evaluate",
    "/v1/job/{j}/versions",
    "/v1/job/{j}/allocations",
    "/v1/job/{j}/evaluations",
    "/v1/job/{j}/deployments",
    "/v1/job/{j}/deployment",
    "/v1/job/{j}/summary",
    "/v1/job/{j}/submission",
    "/v1/job/{j}/periodic/force",
    "/v1/job/{j}/actions",
    "/v1/job/{j}/services",
    "/v1/validate/job",
    "/v1/nodes",
    "/v1/node/{i}",
    "/v1/node/{i}/allocations",
    "/v1/node/{i}/evaluate",
    "/v1/node/{i}/drain",
    "/v1/node/{i}/eligibility",
    "/v1/allocations",
    "/v1/allocation/{i}",
    "/v1/allocation/{i}/stop",
    "/v1/allocation/{i}/services",
    "/v1/evaluations",
    "/v1/evaluations/count",
    "/v1/evaluation/{i}",
    "/v1/evaluation/{i}/allocations",
    "/v1/deployments",
    "/v1/deployment/{i}",
    "/v1/deployment/fail/{i}",
    "/v1/deployment/pause/{i}",
    "/v1/deployment/promote/{i}",
    "/v1/deployment/allocation-health/{i}",
    "/v1/client/fs/ls/{i}",
    "/v1/client/fs/cat/{i}",
    "/v1/client/fs/stat/{i}",
    "/v1/client/fs/readat/{i}",
    "/v1/client/fs/logs/{i}",
    "/v1/client/stats",
    "/v1/client/allocation/{i}/stats",
    "/v1/client/allocation/{i}/restart",
    "/v1/client/allocation/{i}/signal",
    "/v1/client/allocation/{i}/exec",
    "/v1/client/metadata",
    "/v1/client/audit",
    "/v1/search",
    "/v1/search/fuzzy",
    "/v1/services",
    "/v1/service/{j}",
    "/v1/scaling/policies",
    "/v1/scaling/policy/{i}",
    "/v1/namespaces",
    "/v1/namespace/{j}",
    "/v1/node/pools",
    "/v1/node/pool/{j}",
    "/v1/operator/scheduler/configuration",
    "/v1/operator/raft/configuration",
    "/v1/operator/recovery",
    "/v1/remote/tasks",
    "/v1/remote/task/{j}",
    "/v1/agent/self",
    "/v1/agent/members",
    "/v1/agent/health",
    "/v1/agent/servers",
    "/v1/status/leader",
    "/v1/status/peers",
    "/v1/metrics",
    "/v1/regions",
    "/v1/drivers/schemas",
    "/v1/system/reconcile/summaries",
    "/v1/vars",
    "/v1/var/{j}",
    "/v1/acl/policies",
    "/v1/plugins",
    "/v1/volumes",
    "/v1/volumes/claims",
    "/v1/volume/host/create",
    "/v1/volume/host/register",
    "/v1/volume/host/{j}",
    "/.well-known/jwks.json",
    "/ui/",
    "/v1/{j}",
];
const NAMES: &[&str] = &[
    "known",
    "none",
    "..",
    "%2e%2e",
    "%00",
    "%0a",
    "%ff",
    "a%2Fb",
    "x//y",
    "%F0%9F%90%84",
    "0",
    "-1",
    "known/../..",
    "%",
    "%zz",
    "a;b",
    "*",
];
const QUERIES: &[&str] = &[
    "index=1&wait=1ms",
    "index=-1",
    "index=99999999999999999999",
    "wait=1h2x",
    "per_page=0",
    "per_page=-5",
    "per_page=99999999",
    "next_token=%00",
    "prefix=%ff",
    "prefix=00",
    "filter=Name+%3D%3D+%22a%22",
    "filter=(((",
    "filter=%00",
    "namespace=*",
    "namespace=none",
    "region=elsewhere",
    "stale=maybe",
    "pretty",
    "reverse=true",
    "path=../../../../etc/passwd",
    "path=/",
    "path=%00",
    "offset=-1",
    "offset=9223372036854775807",
    "limit=-1",
    "limit=9223372036854775807",
    "task=t&type=stdout",
    "task=t&type=none",
    "type=stderr&origin=end&offset=9223372036854775807",
    "command=[]",
    "command=%5B%22true%22%5D&task=t",
    "node_id=none",
    "node_id=%00",
    "purge=true",
    "eval_priority=-1",
    "version=18446744073709551616",
    "format=prometheus",
    "diff_version=-1",
    "task_states=x",
];
const BODIES: &[&str] = &[
    "",
    "{}",
    "[]",
    "null",
    "\"x\"",
    "0",
    "{",
    "{\"Job\":null}",
    "{\"Job\":{}}",
    "{\"Job\":{\"ID\":\"known\",\"TaskGroups\":[{}]}}",
    r#"{"Job":{"ID":"a","TaskGroups":[{"Name":"g","Count":-1,"Tasks":[{"Name":"t","Driver":"raw_exec"}]}]}}"#,
    "{\"Job\":{\"ID\":\"a\",\"Priority\":9223372036854775807}}",
    "{\"JobHCL\":\"job \\\"x\\\" { group \\\"g\\\" { count = -9e99 } }\"}",
    "{\"JobHCL\":\"${\"}",
    "{\"Count\":-9223372036854775808,\"Target\":{\"Group\":\"g\"}}",
    "{\"Count\":1e308}",
    "{\"Target\":{\"Group\":null}}",
    "{\"DrainSpec\":{\"Deadline\":-9223372036854775808}}",
    "{\"DrainSpec\":{\"Deadline\":\"x\"}}",
    "{\"Eligibility\":\"maybe\"}",
    "{\"Prefix\":\"\",\"Context\":\"all\"}",
    "{\"Text\":\"a\",\"Context\":\"jobs\"}",
    "{\"JobVersion\":18446744073709551615}",
    "{\"Signal\":\"SIGNONE\"}",
    "{\"Payload\":\"not base64\"}",
    "{\"Meta\":{\"\\u0000\":\"\\u0000\"}}",
    "{\"HealthyAllocationIDs\":[\"x\"]}",
    "{\"Name\":\"\\ud800\"}",
    "{\"All\":true}",
];

fn fuzz() -> Result<String> {
    let agent = both("fuzz", "")?;
    agent.put("/v1/jobs", &job("known", "raw_exec", 1, "/bin/sleep", &["71401"]))?;
    let alloc = text(&running(&agent, "known", 1)?[0]["ID"]);
    let ids = [alloc.as_str(), &alloc[..8], "00000000-0000-0000-0000-000000000000", "none", "%00", "..", "zz"];
    let mut dice = Dice(SEED);
    let rest = kit::resident_mib(agent.pid())?;
    let others = Others::of(&agent);
    let mut statuses = std::collections::BTreeMap::<u16, usize>::new();
    for n in 0..REQUESTS {
        let method = dice.one(&["GET", "GET", "GET", "GET", "PUT", "PUT", "PUT", "POST", "DELETE", "BREW"]);
        let mut path = dice.one(PATHS).replace("{j}", dice.one(NAMES)).replace("{i}", dice.one(&ids));
        for sign in ["?", "&"].iter().take(dice.roll(3)) {
            path = format!("{path}{sign}{}", dice.one(QUERIES));
        }
        // Its own agent is not to end, and streams do not end.
        if path.contains("/v1/agent/force") || path.contains("follow=true") {
            continue;
        }
        let mut body = dice.one(BODIES).as_bytes().to_vec();
        if dice.roll(4) == 0 && !body.is_empty() {
            let at = dice.roll(body.len());
            body[at] = u8::try_from(dice.roll(256)).unwrap_or(0);
        }
        let answer =
            ask(&agent, method, &path, &[], if *method == *"GET" { b"" } else { &body }).with_context(|| {
                format!("request {n} of seed {SEED:#x}: {method} {path} {:?}", String::from_utf8_lossy(&body))
            })?;
        ensure!(
            !["failed inside the server", "the server has a defect"].iter().any(|text| answer.body.contains(text)),
            "request {n}: {method} {path} {:?}: {}",
            String::from_utf8_lossy(&body),
            answer.short()
        );
        *statuses.entry(answer.status).or_default() += 1;
    }
    let waited = others.were_answered()?;
    ensure!(!agent.log().contains("panicked"), "something has panicked:\n{}", agent.log_tail());
    let more = peak_mib(agent.pid())?.saturating_sub(rest);
    ensure!(more < 200, "{more} MiB more after {REQUESTS} requests");
    // The agent still does what it is for.
    agent.put("/v1/jobs", &job("after", "raw_exec", 1, "/bin/sleep", &["71402"]))?;
    kit::ready(&agent, &agent, "raw_exec")?;
    let elig = agent.get("/v1/nodes")?[0]["ID"].clone();
    agent.put(&format!("/v1/node/{}/eligibility", text(&elig)), &serde_json::json!({"Eligibility": "eligible"}))?;
    running(&agent, "after", 1)?;
    Ok(format!("{statuses:?}, {more} MiB more, others waited {waited} ms at most"))
}
