//! What a task is given, and the order in which tasks begin and end.

use serde_json::json;

use super::{
    super::{
        job::{Job, TOLD},
        scenario::{
            Act::{Alloc, Dispatch, Health, Scale, Tell},
            Look, Scenario, Step, Until,
        },
    },
    steps::{out, run, sorted_out, stop},
};

fn says(name: &str, then: &str) -> String {
    format!("echo {name} begins >> $NOMAD_ALLOC_DIR/data/order; {then}")
}

/// Tells when it is asked to end, and ends after a while.
fn slow(name: &str, seconds: &str) -> String {
    format!(
        "trap 'echo {name} is asked >> $NOMAD_ALLOC_DIR/data/order; sleep {seconds}; echo {name} ends >> \
            $NOMAD_ALLOC_DIR/data/order; exit 0' TERM; while :; do sleep 0.1; done"
    )
}

const TELLS_ORDER: &str = "cat $NOMAD_ALLOC_DIR/data/order";

fn hook(hook: &str, sidecar: bool) -> String {
    format!("lifecycle {{; hook = {hook:?}; sidecar = {sidecar}; }}")
}

fn restart_by_hand() -> Step {
    Alloc("g[0]", "POST", "/v1/client/allocation/ALLOC/restart", json!({})).into()
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let mut all = lifecycle();
    all.extend(given());
    all
}

fn lifecycle() -> Vec<Scenario> {
    let service = Job::service;
    vec![
        Scenario::shared(
            "hooks",
            [
                run(service()
                    .script(&says("main", TOLD))
                    .with_task("before", &says("before", "exit 0"), &hook("prestart", false))
                    .with_task("after", &says("after", "exit 0"), &hook("poststart", false))
                    .with_task("last", TELLS_ORDER, &hook("poststop", false)))
                .count("running", 1),
                stop().look(out("g[0]", "last")),
            ],
        ),
        Scenario::shared(
            "sidecars-end-last",
            [
                run(service()
                    .script(&slow("main", "2"))
                    .with_task("proxy", &slow("proxy", "0"), &hook("prestart", true))
                    .with_task("last", TELLS_ORDER, &hook("poststop", false)))
                .count("running", 1),
                stop().look(out("g[0]", "last")),
            ],
        ),
        Scenario::shared(
            "poststart-sidecars-end-last",
            [
                run(service()
                    .script(&slow("main", "2"))
                    .with_task("proxy", &slow("proxy", "0"), &hook("poststart", true))
                    .with_task("last", TELLS_ORDER, &hook("poststop", false)))
                .count("running", 1),
                stop().look(out("g[0]", "last")),
            ],
        ),
        Scenario::shared(
            "leader-ends",
            [
                run(Job::batch(TOLD).task("leader = true").with_task("other", TOLD, "")).count("running", 1),
                Tell("g[0]", "t", 0).into(),
            ],
        ),
        Scenario::shared(
            "leader-fails",
            [
                run(service().task("leader = true").with_task("other", TOLD, "")).count("running", 1),
                Tell("g[0]", "t", 2).into(),
            ],
        ),
        Scenario::shared(
            "leader-is-stopped-first",
            [
                run(service()
                    .script(&slow("leader", "1"))
                    .task("leader = true")
                    .with_task("other", &slow("other", "0"), "")
                    .with_task("last", TELLS_ORDER, &hook("poststop", false)))
                .count("running", 1),
                stop().look(out("g[0]", "last")),
            ],
        ),
        Scenario::shared(
            "prestart-fails",
            [
                run(service().with_task("before", "exit 5", &hook("prestart", false)).with_task(
                    "last",
                    "exit 0",
                    &hook("poststop", false),
                ))
                .count("failed", 1),
                run(service()).count("running", 1),
            ],
        ),
        Scenario::shared(
            "poststart-fails",
            [
                run(service().with_task("after", TOLD, &hook("poststart", false))).count("running", 1),
                Tell("g[0]", "after", 6).into(),
                stop(),
            ],
        ),
        Scenario::shared(
            "batch-with-sidecar",
            [
                run(Job::batch(TOLD).with_task("proxy", TOLD, &hook("prestart", true))).count("running", 1),
                Tell("g[0]", "t", 0).into(),
            ],
        ),
        Scenario::shared(
            "kill-signal",
            [
                run(service()
                    .script("trap 'exit 7' INT; while :; do sleep 0.1; done")
                    .task("kill_signal = \"SIGINT\""))
                .count("running", 1),
                stop(),
            ],
        ),
        Scenario::shared(
            "kill-timeout",
            [
                run(service().script("trap '' TERM INT; while :; do sleep 0.1; done").task("kill_timeout = \"1s\""))
                    .count("running", 1),
                stop(),
            ],
        ),
        Scenario::shared(
            "shutdown-delay",
            [run(service().task("shutdown_delay = \"1s\"")).count("running", 1), stop()],
        ),
        Scenario::shared(
            "group-shutdown-delay",
            [run(service().group("shutdown_delay = \"1s\"")).count("running", 1), stop()],
        ),
    ]
}

const DISPATCHED: &str = "parameterized {; payload = \"optional\"; meta_required = [\"a\"]; meta_optional = [\"b\"]; }";

fn given() -> Vec<Scenario> {
    let service = Job::service;
    let again = || restart_by_hand().look(sorted_out("g[0]", "t"));
    let env = "env | grep -v '^PATH=' | grep -v '^PWD=' | grep -v '^OLDPWD=' | grep -v '^DROVER_' | grep -v \
        '^NOMAD_SHORT_ALLOC_ID'";
    vec![
        Scenario::shared(
            "environment",
            [
                run(service()
                    .script(&format!("{env}; {TOLD}"))
                    .job("meta {; of-job = \"1\"; }")
                    .group("meta {; of_group = \"2\"; }; network {; port \"web\" {}; port \"to\" {; to = 99; }; }")
                    .task("meta {; of_task = \"3\"; }"))
                .count("running", 1)
                .look(sorted_out("g[0]", "t")),
                again(),
            ],
        ),
        Scenario::shared(
            "interpolation",
            [
                run(service().script(&format!("env | grep ^X_; {TOLD}")).task(
                    "meta {; a = \"m\"; }; env {; X_A = \"${node.datacenter}\"; X_B = \"${attr.kernel.name}\"; X_C \
                        = \"${NOMAD_META_a}\"; \
                     X_D = \"${NOMAD_TASK_NAME}-${NOMAD_ALLOC_INDEX}\"; X_E = \"${meta.lane}\"; X_F \
                     = \"${node.region}\"; X_G = \"${nothing.of.this}\"; \
                     X_H = \"${NOMAD_GROUP_NAME}/${NOMAD_JOB_NAME}\"; X_I = \"${NOMAD_ALLOC_NAME}\"; }",
                ))
                .count("running", 1)
                .look(sorted_out("g[0]", "t")),
                again(),
            ],
        ),
        Scenario::shared(
            "directories",
            [
                run(service().script(&format!(
                    "cd $NOMAD_ALLOC_DIR/..; find . -printf '%y %m %p\\n' | grep -v \
                    /executor; umask; {TOLD}"
                )))
                .count("running", 1)
                .look(sorted_out("g[0]", "t")),
                again(),
            ],
        ),
        Scenario::shared(
            "template",
            [
                run(service()
                    .script(&format!(
                        "cat $NOMAD_TASK_DIR/file; echo $FROM_FILE; stat -c %a \
                        $NOMAD_TASK_DIR/file; {TOLD}"
                    ))
                    .task(
                        "meta {; who = \"me\"; }; template {; destination = \"local/file\"; perms = \"640\"; data \
                            = \"{{ env `node.unique.name` | toUpper | len }} {{ env `attr.kernel.name` }} {{ env \
                            `meta.lane` }} {{ env `NOMAD_META_who` }} {{ env `NOMAD_JOB_NAME` }}\\n\"; }\
                         ; template {; destination = \"local/env\"; env = true; data = \"FROM_FILE=yes\\n\"; }",
                    ))
                .count("running", 1)
                .look(out("g[0]", "t")),
                restart_by_hand().look(out("g[0]", "t")),
            ],
        ),
        Scenario::shared(
            "template-restarts",
            [
                run(Job::service().group(
                    "service {; name = \"JOB-web\"; provider = \"nomad\"; port = \"80\"; address \
                    = \"127.0.0.1\"; }",
                ))
                .count("running", 1),
                run(Job::service().named("reader").script(&format!("cat $NOMAD_TASK_DIR/file; {TOLD}")).task(
                    "template {; destination = \"local/file\"; change_mode = \"restart\"; splay = \"0s\"; data = \"{{ \
                        range nomadService `JOB-web` }}one {{ end }}\\n\"; }",
                ))
                .look(Look::Job("reader")),
                // The stock waits five seconds for further changes before it renders.
                Step::from(Scale("g", 2)).until(Until::Seconds(12.0)).look(Look::Job("reader")),
            ],
        ),
        Scenario::shared(
            "artifact",
            [
                run(service()
                    .script(&format!("cat $NOMAD_TASK_DIR/got/*; ls -l $NOMAD_TASK_DIR/got | cut -c1-10; {TOLD}"))
                    .task("artifact {; source = \"http://127.0.0.1:HEALTH/file\"; destination = \"local/got\"; }"))
                .count("running", 1)
                .look(out("g[0]", "t")),
                restart_by_hand().look(out("g[0]", "t")),
            ],
        ),
        Scenario::shared(
            "artifact-fails",
            [
                run(service().task("env {; A = \"HEALTH\"; }")).count("running", 1),
                Health(false).into(),
                run(service().task(
                    "artifact {; source = \"http://127.0.0.1:HEALTH/file\"; destination \
                    = \"local/got\"; }",
                ))
                .until(Until::Seconds(8.0)),
                stop(),
            ],
        ),
        Scenario::shared(
            "logs-rotate",
            [
                // Written at once: what the first run has written by its restart decides how many files there are.
                run(service()
                    .script(&format!("seq -f \"line %.0f\" 0 259999; {TOLD}"))
                    .task("logs {; max_files = 2; max_file_size = 1; }"))
                .count("running", 1),
                restart_by_hand().look(Look::Get("/v1/client/fs/ls/ALLOC?path=alloc/logs")),
            ],
        ),
        Scenario::shared(
            "logs-disabled",
            [
                run(service().script(&format!("echo hello; {TOLD}")).task(
                    "logs {; disabled \
                    = true; }",
                ))
                .count("running", 1),
                restart_by_hand(),
                stop(),
            ],
        ),
        Scenario::shared(
            "no-such-user",
            [
                run(service().task("user = \"nobody-of-this-name\"")).count("failed", 1),
                run(service()).count("running", 1),
            ],
        ),
        Scenario::shared(
            "host-volume",
            [
                run(service()
                    .script(&format!("ls -d $NOMAD_TASK_DIR/../mnt 2>/dev/null; {TOLD}"))
                    .group("volume \"v\" {; type = \"host\"; source = \"shared\"; read_only = false; }"))
                .count("running", 1),
                run(service().update("max_parallel = 0").group(
                    "volume \"v\" {; type = \"host\"; source \
                    = \"not-there\"; read_only = false; }",
                )),
                stop(),
            ],
        ),
        Scenario::shared(
            "dispatch",
            [
                run(Job::batch(&format!("cat $NOMAD_TASK_DIR/input; echo $NOMAD_META_a $NOMAD_META_b; {TOLD}"))
                    .job(DISPATCHED)
                    .task("dispatch_payload {; file = \"input\"; }")),
                Step::from(Dispatch { payload: "aGVsbG8K", meta: json!({"a": "1", "b": "2"}) })
                    .count("running", 1)
                    .look(out("g[0]", "t")),
                Tell("g[0]", "t", 0).into(),
                Dispatch { payload: "", meta: json!({"b": "2"}) }.into(),
                Dispatch { payload: "", meta: json!({"a": "1", "c": "2"}) }.into(),
                stop(),
            ],
        ),
    ]
}
