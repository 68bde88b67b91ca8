//! What holds for any job.

use model::{
    Job,
    diff::{DiffType, diff},
    spec_hash, specification_changed, tasks_updated,
};
use proptest::prelude::*;
use serde_json::json;

use crate::{merge, small};

/// A job that differs from the smallest in a random selection of ways.
fn any_job() -> impl Strategy<Value = Job> {
    let kinds = prop_oneof![Just("service"), Just("batch")];
    (kinds, 0i32..4, any::<bool>(), any::<bool>(), 0i64..3, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(kind, count, meta, env, cpu, net, volume, template)| {
            let mut group = json!({"Count": count});
            if net {
                merge(&mut group, json!({"Networks": [{"DynamicPorts": [{"Label": "x"}]}]}));
            }
            if volume {
                merge(&mut group, json!({"Volumes": {"d": {"Source": "s"}}}));
            }
            let mut task = json!({"Resources": {"CPU": 100 + cpu}});
            if env {
                merge(&mut task, json!({"Env": {"A": "1"}}));
            }
            if template {
                merge(
                    &mut task,
                    json!({"Templates": [{"EmbeddedTmpl": "x"}], "Artifacts": [{"GetterSource": "y"}], "Vault": {}}),
                );
            }
            small(if meta { json!({"Type": kind, "Meta": {"a": "1"}}) } else { json!({"Type": kind}) }, group, task)
        },
    )
}

proptest! {
    #[test]
    fn canonical_form_is_a_fixed_point(j in any_job()) {
        let mut again = j.clone();
        again.canonicalize();
        prop_assert_eq!(&again, &j);
        // Also after a round trip through the API's JSON, as clients send back what they have read.
        let mut back: Job = serde_json::from_str(&serde_json::to_string(&j).expect("json")).expect("job");
        back.canonicalize();
        prop_assert_eq!(&back, &j);
        prop_assert!(!specification_changed(&j, &back));
    }

    /// A changed hash without a replaced allocation would stop an instance behind its allocation's back.
    #[test]
    fn a_changed_hash_replaces_the_allocation(a in any_job(), b in any_job()) {
        let hash = |j: &Job| spec_hash(j, &j.task_groups[0], &j.task_groups[0].tasks[0]);
        if hash(&a) != hash(&b) {
            prop_assert!(tasks_updated(&a, &b, "app").is_some());
        }
    }

    #[test]
    fn a_diff_is_empty_exactly_when_nothing_changed(a in any_job(), b in any_job()) {
        let d = diff(Some(&a), Some(&b), false);
        // `Update` of the job is shown in the groups, so equality of jobs and emptiness agree.
        prop_assert_eq!(d.kind == DiffType::None, a == b);
    }
}
