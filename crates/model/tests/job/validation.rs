//! Mistakes, refused features and warnings.

use model::{
    Job, unsupported,
    validate::{self, ValidationErrors},
};
use serde_json::json;

use crate::{job, small};

fn errors(j: &Job) -> Vec<String> {
    validate::validate(j).map_or_else(|e| e.flat(), |_| Vec::new())
}

#[test]
fn layout_of_errors() {
    let j = small(json!({"Priority": 900}), json!({}), json!({"Driver": ""}));
    let e = validate::validate(&j).expect_err("two mistakes");
    assert_eq!(
        e.to_string(),
        "2 errors occurred:\n\t* Job priority must be between [1, 100]\n\t* Task group app validation failed: 1 error \
            occurred:\n\t* Task web \
         validation failed: 1 error occurred:\n\t* Missing task driver\n\n\n\n\n\n"
    );
    assert_eq!(ValidationErrors(vec![validate::Problem::Text("x".into())]).to_string(), "1 error occurred:\n\t* x\n\n");
}

#[test]
fn mistakes_by_name() {
    let g = "Task group app validation failed: ";
    let t = "Task group app validation failed: Task web validation failed: ";
    let none = || json!({});
    let cases: Vec<(Job, String)> = vec![
        (job(json!({})), "Missing job ID".into()),
        (job(json!({"ID": "x"})), "Missing job task groups".into()),
        (small(json!({"ID": "a b"}), none(), none()), "Job ID contains a space".into()),
        (small(json!({"Type": "cron"}), none(), none()), "Invalid job type: \"cron\"".into()),
        (small(json!({"Priority": 101}), none(), none()), "Job priority must be between [1, 100]".into()),
        (small(json!({"Priority": -1}), none(), none()), "Job priority must be between [1, 100]".into()),
        (small(json!({"Datacenters": [""]}), none(), none()), "Job datacenter must be non-empty string".into()),
        (
            small(json!({"Constraints": [{"LTarget": "${attr.x}", "Operand": "~"}]}), none(), none()),
            "Constraint 1 validation failed: Unknown constraint type \"~\"".into(),
        ),
        (
            small(json!({"Constraints": [{"Operand": "regexp", "RTarget": "x"}]}), none(), none()),
            "Constraint 1 validation failed: No LTarget provided but is required by constraint".into(),
        ),
        (
            small(none(), json!({"Affinities": [{"LTarget": "${node.class}", "RTarget": "x", "Weight": 0}]}), none()),
            format!("{g}Affinity 1 validation failed: Affinity weight cannot be zero"),
        ),
        (
            small(
                none(),
                json!({"Spreads": [{"Attribute": "${node.datacenter}",
                    "SpreadTarget": [{"Value": "a", "Percent": 60}, {"Value": "b", "Percent": 50}]}]}),
                none(),
            ),
            format!(
                "{g}Spread 1 validation failed: Sum of spread target percentages must not be greater than 100%; \
                    got 110%"
            ),
        ),
        (small(none(), json!({"Count": -1}), none()), format!("{g}Task group count can't be negative")),
        (small(none(), json!({"Tasks": []}), none()), format!("{g}Missing tasks for task group")),
        (
            small(none(), json!({"RestartPolicy": {"Attempts": 0, "Mode": "delay"}}), none()),
            format!("{g}Restart policy \"delay\" with 0 attempts is ambiguous"),
        ),
        (
            small(none(), json!({"RestartPolicy": {"Mode": "maybe"}}), none()),
            format!("{g}Unsupported restart mode: \"maybe\""),
        ),
        (
            small(none(), json!({"ReschedulePolicy": {"Attempts": 3, "Interval": "10m"}}), none()),
            format!("{g}Reschedule Policy with Attempts = 3, Interval = 10m0s, and Unlimited = true is ambiguous"),
        ),
        (
            small(none(), json!({"Update": {"MinHealthyTime": "6m"}}), none()),
            format!("{g}Minimum healthy time must be less than healthy deadline: 6m0s > 5m0s"),
        ),
        (
            small(json!({"Type": "batch"}), json!({"Update": {"MaxParallel": 1}}), none()),
            format!("{g}Job type \"batch\" does not allow update block"),
        ),
        (
            small(
                none(),
                json!({"Networks": [{"ReservedPorts": [{"Label": "a", "Value": 80}, {"Label": "b", "Value": 80}]}]}),
                none(),
            ),
            format!("{g}Static port 80 already reserved by a"),
        ),
        (
            small(
                none(),
                json!({"Networks": [{"ReservedPorts": [{"Label": "a", "Value": 80}],
                    "DynamicPorts": [{"Label": "a"}]}]}),
                none(),
            ),
            format!("{g}Port label a already in use by network"),
        ),
        (
            small(none(), none(), json!({"Name": "a/b"})),
            "Task group app validation failed: Task a/b validation failed: Task name cannot include slashes".into(),
        ),
        (
            small(none(), none(), json!({"Resources": {"MemoryMB": 1}})),
            format!("{t}minimum MemoryMB value is 10; got 1"),
        ),
        (
            small(none(), none(), json!({"Resources": {"CPU": 100, "Cores": 1}})),
            format!("{t}Task can only ask for 'cpu' or 'cores' resource, not both."),
        ),
        (
            small(none(), none(), json!({"Resources": {"MemoryMB": 20, "SecretsMB": 20}})),
            format!("{t}SecretsMB value (20) should be smaller than MemoryMB value (20), of which it is a part"),
        ),
        (
            small(none(), none(), json!({"LogConfig": {"MaxFiles": 30, "MaxFileSizeMB": 10}})),
            format!("{t}log storage (300 MB) must be less than requested disk capacity (300 MB)"),
        ),
        (
            small(none(), none(), json!({"Lifecycle": {"Hook": "before"}})),
            format!("{t}Lifecycle block validation failed: invalid hook: before"),
        ),
        (
            small(none(), none(), json!({"Lifecycle": {"Hook": "prestart", "Sidecar": true}})),
            format!("{g}Task group has no work: every task is a sidecar or runs after the others"),
        ),
        (
            small(json!({"Constraints": [{"LTarget": "${attr.x}", "RTarget": "y"}]}), none(), none()),
            "Constraint 1 validation failed: Missing constraint operand: name the operator, such as \"=\"".into(),
        ),
        (
            small(none(), json!({"Affinities": [{"LTarget": "${attr.x}", "RTarget": "y", "Weight": 5}]}), none()),
            format!("{g}Affinity 1 validation failed: Missing affinity operand: name the operator, such as \"=\""),
        ),
        (
            small(json!({"Constraints": [{"LTarget": "${attr.x}", "Operand": "="}]}), none(), none()),
            "Constraint 1 validation failed: Operator \"=\" requires an RTarget".into(),
        ),
        (
            small(none(), none(), json!({"Resources": {"Cores": -1, "CPU": 100}})),
            format!("{t}cores value cannot be negative; got -1"),
        ),
        (
            small(none(), none(), json!({"Resources": {"DiskMB": 100}})),
            format!(
                "{t}Task can't ask for disk resources: they are the group's; write ephemeral_disk {{ size = … }} there"
            ),
        ),
        (
            small(none(), none(), json!({"Resources": {"MemoryMB": 20, "MemoryMaxMB": -2}})),
            format!("{t}MemoryMaxMB value (-2) should be larger than MemoryMB value (20)"),
        ),
        (
            small(json!({"UI": {"Description": "x".repeat(1001)}}), none(), none()),
            "UI description must have at most 1000 characters, it has 1001".into(),
        ),
        (
            small(none(), json!({"Networks": [{"Mode": "bridge", "Hostname": "a b"}]}), none()),
            format!("{g}Hostname \"a b\" is not a valid DNS name"),
        ),
        (
            small(none(), json!({"Networks": [{"Mode": "cni/x", "CNI": {"Args": {"a": "b;c"}}}]}), none()),
            format!("{g}invalid ';' in the value of CNI argument \"a\": it separates arguments"),
        ),
        (
            small(none(), none(), json!({"Actions": [{"Name": "a b", "Command": "x"}]})),
            format!("{t}Action name \"a b\" must have 1 to 128 characters, none of them white space or null"),
        ),
        (
            small(none(), none(), json!({"Actions": [{"Name": "a", "Command": "x"}, {"Name": "a", "Command": "y"}]})),
            format!("{t}Action \"a\" is defined twice"),
        ),
        (
            small(none(), json!({"Scaling": {"Min": -1, "Max": 3}}), none()),
            format!("{g}Scaling policy invalid: counts must not be negative"),
        ),
        (small(none(), none(), json!({"KillTimeout": -1})), format!("{t}KillTimeout must be a positive value")),
        (
            small(none(), none(), json!({"Constraints": [{"Operand": "distinct_hosts"}]})),
            format!("{t}Constraint 1 has disallowed Operand at task level: distinct_hosts"),
        ),
        (
            small(none(), json!({"Volumes": {"v": {"Type": "nfs", "Source": "s"}}}), none()),
            format!("{g}volume \"v\" has unrecognised type \"nfs\": there are host and csi"),
        ),
        (
            small(none(), json!({"Volumes": {"v": {"Type": "host"}}}), none()),
            format!("{g}volume \"v\" has an empty source"),
        ),
        (
            small(none(), none(), json!({"VolumeMounts": [{"Volume": "v", "Destination": "/v"}]})),
            format!("{t}Volume Mount (0) validation failed: references undefined volume \"v\""),
        ),
        (
            small(none(), json!({"Volumes": {"v": {"Source": "s"}}}), json!({"VolumeMounts": [{"Volume": "v"}]})),
            format!("{t}Volume Mount (0) validation failed: destination must be specified"),
        ),
    ];
    for (j, expected) in cases {
        let found = errors(&j);
        assert!(found.contains(&expected), "expected {expected:?} among {found:#?}");
    }
    let artifacts = [
        (json!({}), "source must be specified"),
        (json!({"GetterSource": "hg::http://h/r"}), "artifacts are not fetched by hg: use git, or an archive by https"),
        (
            json!({"GetterSource": "https://h/a", "GetterMode": "all"}),
            "invalid mode \"all\"; must be one of: any, file, dir",
        ),
        (
            json!({"GetterSource": "https://h/a", "RelativeDest": "../../x"}),
            "destination \"../../x\" leaves the directories of the task",
        ),
        (
            json!({"GetterSource": "https://h/a", "Chown": true}),
            "chown gives the files to the task's user, and the task names none",
        ),
        (
            json!({"GetterSource": "https://h/a", "GetterOptions": {"checksum": "md5:12"}}),
            "checksum \"md5:12\" must be TYPE:HEX in full, with type md5, sha1, sha256, sha512, or file:ADDRESS \
                of a list",
        ),
        (
            json!({"GetterSource": "git::https://h/r", "GetterHeaders": {"a": "b"}}),
            "headers are sent with http and https sources only",
        ),
    ];
    for (artifact, expected) in artifacts {
        let found = errors(&small(none(), none(), json!({"Artifacts": [artifact]})));
        assert_eq!(found, [format!("{t}Artifact 1 validation failed: {expected}")]);
    }
    let fine = json!([
        {"GetterSource": "${meta.mirror}/a", "RelativeDest": "${NOMAD_ALLOC_DIR}/x",
            "GetterOptions": {"checksum": "md5:${meta.sum}"}},
        {"GetterSource": "https://h/a", "RelativeDest": "../alloc/data",
            "GetterOptions": {"checksum": "file:https://h/SUMS"}},
        {"GetterSource": "https://h/a", "GetterOptions": {"checksum": "d41d8cd98f00b204e9800998ecf8427e"},
            "GetterHeaders": {"a": "b"}}
    ]);
    assert_eq!(errors(&small(none(), none(), json!({"Artifacts": fine}))), Vec::<String>::new());
    let twice = job(json!({"ID": "x", "TaskGroups": [
        {"Name": "a",
            "Tasks": [{"Name": "t", "Driver": "d", "Leader": true}, {"Name": "t", "Driver": "d", "Leader": true}]},
        {"Name": "a", "Tasks": [{"Name": "t", "Driver": "d"}]}
    ]}));
    let found = errors(&twice);
    for expected in [
        "Job task group 2 redefines 'a' from group 1",
        "Task group a validation failed: Task 2 redefines 't' from task 1",
        "Task group a validation failed: Only one task may be marked as leader",
    ] {
        assert!(found.iter().any(|e| e == expected), "expected {expected:?} among {found:#?}");
    }
}

/// What runs on every node has no count, no preferences and no spread; finite ones are only told.
#[test]
fn jobs_of_every_node() {
    let affinity = json!([{"LTarget": "${node.class}", "RTarget": "x", "Operand": "=", "Weight": 50}]);
    let spread = json!([{"Attribute": "${node.datacenter}"}]);
    let of = |kind: &str| {
        [
            (
                small(json!({"Type": kind, "Affinities": affinity}), json!({}), json!({})),
                "System jobs may not have an affinity block",
            ),
            (
                small(json!({"Type": kind, "Spreads": spread}), json!({}), json!({})),
                "System jobs may not have a spread block",
            ),
            (
                small(json!({"Type": kind}), json!({"Affinities": affinity}), json!({})),
                "System jobs may not have an affinity block",
            ),
            (
                small(json!({"Type": kind}), json!({}), json!({"Affinities": affinity})),
                "System jobs may not have an affinity block",
            ),
            (
                small(json!({"Type": kind}), json!({"Spreads": spread}), json!({})),
                "System jobs may not have a spread block",
            ),
            (
                small(json!({"Type": kind}), json!({"Count": 2}), json!({})),
                "Count cannot exceed 1 with the system scheduler",
            ),
        ]
    };
    for (job, expected) in of("system") {
        let found = errors(&job);
        assert!(found.len() == 1 && found[0].contains(expected), "{expected:?} in {found:#?}");
    }
    let scaling = small(json!({"Type": "system"}), json!({"Scaling": {"Max": 1}}), json!({}));
    assert!(errors(&scaling)[0].contains("do not support scaling blocks"), "{:?}", errors(&scaling));
    assert_eq!(errors(&small(json!({"Type": "system"}), json!({"Count": 0}), json!({}))), Vec::<String>::new());
    for (job, _) in of("sysbatch") {
        let warnings = validate::validate(&job).expect("accepted").0;
        assert!(warnings.len() == 1 && warnings[0].contains("of a sysbatch job has no effect"), "{warnings:?}");
    }
}

/// What a group may ask of a host volume.
#[test]
fn host_volumes_have_modes_of_their_own() {
    let asks = |kind: &str, volume: serde_json::Value, update: serde_json::Value| {
        let group = json!({"Volumes": {"v": volume}, "Update": update});
        errors(&small(json!({"Type": kind}), group, json!({})))
    };
    let none = || json!(null);
    for (kind, volume, update, expected) in [
        ("service", json!({"AccessMode": "x"}), none(), Some("access_mode \"x\" is none of host volumes")),
        ("service", json!({"AttachmentMode": "x"}), none(), Some("attachment_mode \"x\" is none")),
        ("service", json!({"AccessMode": "single-node-reader-only"}), none(), Some("needs read_only = true")),
        ("service", json!({"AccessMode": "single-node-reader-only", "ReadOnly": true}), none(), None),
        ("service", json!({"AccessMode": "single-node-multi-writer", "Sticky": true}), none(), None),
        ("service", json!({"MountOptions": {"FSType": "ext4"}}), none(), Some("cannot have mount_options")),
        ("service", json!({"Sticky": true, "PerAlloc": true}), none(), Some("cannot be both sticky and per_alloc")),
        ("service", json!({"PerAlloc": true}), json!({"Canary": 1}), Some("per_alloc and canaries exclude")),
        ("service", json!({"PerAlloc": true}), none(), None),
        ("system", json!({"PerAlloc": true}), none(), Some("cannot be per_alloc in a job of type system")),
        ("sysbatch", json!({"PerAlloc": true}), none(), Some("cannot be per_alloc in a job of type sysbatch")),
    ] {
        let mut asked = volume.clone();
        (asked["Type"], asked["Source"]) = (json!("host"), json!("data"));
        let found = asks(kind, asked, update);
        let fits = expected.is_none_or(|part| found.len() == 1 && found[0].contains(part));
        assert!(fits && found.is_empty() == expected.is_none(), "{kind} {volume}: {found:#?}");
    }
}

#[test]
fn what_was_refused_without_need_is_accepted() {
    for job in [
        small(json!({}), json!({}), json!({"Lifecycle": {"Hook": "prestart"}})),
        small(json!({"Type": "batch", "Periodic": {"Enabled": false, "Spec": "@daily"}}), json!({}), json!({})),
        small(json!({}), json!({}), json!({"Resources": {"MemoryMB": 20, "MemoryMaxMB": -1}})),
        small(json!({"NodePool": "all"}), json!({}), json!({})),
        small(
            json!({}),
            json!({"Networks": [{"Mode": "bridge", "Hostname": "web-${NOMAD_ALLOC_INDEX}.example"}]}),
            json!({}),
        ),
        small(
            json!({"NomadTokenID": "x", "ConsulNamespace": "default"}),
            json!({"Services": [{"Provider": "nomad", "Cluster": "default"}]}),
            json!({}),
        ),
    ] {
        assert_eq!(errors(&job), Vec::<String>::new(), "{job:?}");
    }
}

#[test]
fn times_that_are_none_are_refused() {
    let of = |kind: &str, periodic: serde_json::Value| {
        errors(&small(json!({"Type": kind, "Periodic": periodic}), json!({}), json!({})))
    };
    for (periodic, why) in [
        (json!({}), "no cron expression"),
        (json!({"Spec": "@daily", "Specs": ["@hourly"]}), "both cron and crons"),
        (json!({"Specs": ["@daily", "61 * * * *"]}), "61 is not between 0 and 59"),
        (json!({"Spec": "1,2", "SpecType": "test"}), "SpecType \"test\""),
    ] {
        let errors = of("batch", periodic.clone());
        assert!(errors.len() == 1 && errors[0].contains(why), "{periodic}: {errors:?}");
        let mut off = periodic.clone();
        off["Enabled"] = json!(false);
        let off = of("batch", off);
        assert_eq!(off, Vec::<String>::new(), "nothing of a block that is off is looked at");
    }
    assert_eq!(of("batch", json!({"Spec": "@daily"})), Vec::<String>::new());
    let errors = of("service", json!({"Spec": "@daily"}));
    assert!(errors.len() == 1 && errors[0].contains("\"batch\" or \"sysbatch\""), "{errors:?}");
}

/// Every line of the table of refused features is reached by a job that uses the feature, and names it with its reason.
#[test]
fn refused_features_are_refused_by_name() {
    let none = || json!({});
    let jobs = vec![
        small(json!({"Type": "sysbatch"}), none(), none()),
        small(json!({"ParameterizedJob": {}}), none(), none()),
        small(json!({"Multiregion": {"Regions": []}}), none(), none()),
        small(
            json!({"ConsulToken": "x", "VaultToken": "y", "ConsulNamespace": "z", "VaultNamespace": "z"}),
            none(),
            none(),
        ),
        small(none(), json!({"Volumes": {"v": {"Source": "s", "Sticky": true}}}), none()),
        small(
            none(),
            none(),
            json!({
                "Secrets": [{"Name": "s", "Provider": "nomad", "Path": "p"}],
                "Templates": [{"DestPath": "a", "ChangeScript": {"RunOnFirstRender": true}}],
                "Services": [{"Name": "s", "Provider": "nomad", "Cluster": "c", "Kind": "api-gateway"}],
            }),
        ),
        small(none(), json!({"Networks": [{"Hostname": "h", "CNI": {"Args": {"a": "b"}}}]}), none()),
        small(none(), json!({"Networks": [{"Mode": "none", "DynamicPorts": [{"Label": "x"}]}]}), none()),
        small(
            none(),
            json!({"Volumes": {"a": {"Type": "csi", "Source": "a"}, "b": {"Source": "b", "PerAlloc": true},
                "c": {"Source": "c", "AccessMode": "x"}}}),
            none(),
        ),
        small(none(), json!({"Services": [{"Provider": "consul"}], "Consul": {}}), none()),
        small(
            none(),
            none(),
            json!({
                "Templates": [{"VaultGrace": 5}], "Vault": {"Policies": ["p"], "Cluster": "c"},
                "Consul": {}, "CSIPluginConfig": {},
                "Identities": [{"Env": true}, {"Name": "x"}], "Kind": "connect-proxy:x",
                "Schedule": {}
            }),
        ),
        small(
            none(),
            none(),
            json!({"Resources": {
                "Devices": [{"Name": "gpu"}], "NUMA": {"Affinity": "require"},
                "Networks": [{"DynamicPorts": [{"Label": "x"}]}]
            }}),
        ),
    ];
    let consul = json!({
        "Name": "c", "Connect": {"Native": true}, "TaggedAddresses": {"a": "b"}, "EnableTagOverride": true,
        "Weights": {"Passing": 1}, "Identity": {"Name": "x"}
    });
    let check = json!({"Type": "grpc", "Protocol": "https", "Expose": true, "Advertise": "a"});
    let mut jobs = jobs;
    jobs.push(small(none(), json!({"Services": [consul]}), none()));
    jobs.push(small(none(), none(), json!({"Services": [{"Name": "s", "Provider": "nomad", "Checks": [check]}]})));
    let found: Vec<String> = jobs.iter().flat_map(errors).collect();
    for (place, feature, reason) in unsupported::table() {
        let message = format!("{feature} is not supported: {reason}");
        assert!(
            found.iter().any(|e| e.ends_with(&message)),
            "{place}: no job of this test is refused for {feature}; found {found:#?}"
        );
    }
}

/// Each mistake of a service or check is named, with the place where it is.
#[test]
fn services_and_checks() {
    let of = |service: serde_json::Value| {
        let mut service = service;
        service["Provider"] = json!("nomad");
        let group = json!({"Networks": [{"DynamicPorts": [{"Label": "http"}]}], "Services": [service]});
        errors(&small(json!({}), group, json!({})))
    };
    let checked = |check: serde_json::Value| {
        let mut full = json!({"Name": "c", "Type": "tcp", "Interval": "10s", "Timeout": "2s"});
        full.as_object_mut().expect("object").extend(check.as_object().expect("object").clone());
        of(json!({"Name": "s", "PortLabel": "http", "Checks": [full]}))
    };
    assert_eq!(of(json!({"Name": "s", "PortLabel": "http"})), Vec::<String>::new());
    assert_eq!(
        of(json!({"Name": "s-${node.unique.name}", "PortLabel": "8080", "TaskName": "web"})),
        Vec::<String>::new()
    );
    assert_eq!(of(json!({"Name": "s", "PortLabel": "inside", "AddressMode": "driver"})), Vec::<String>::new());
    for (service, expected) in [
        (json!({"Name": "a_b"}), "valid per RFC 1123"),
        (json!({"Name": "-a"}), "valid per RFC 1123"),
        (json!({"Name": "s", "PortLabel": "none"}), "Port label \"none\" does not exist"),
        (json!({"Name": "s", "PortLabel": "70000"}), "not between 1 and 65535"),
        (json!({"Name": "s", "AddressMode": "bridge"}), "Invalid address_mode \"bridge\""),
        (
            json!({"Name": "s", "AddressMode": "host", "Address": "a"}),
            "address_mode must be \"auto\" when an address is given",
        ),
        (json!({"Name": "s", "OnUpdate": "maybe"}), "Invalid on_update \"maybe\""),
        (json!({"Name": "s", "TaskName": "none"}), "The group has no task \"none\""),
        (json!({"Name": "s", "CheckRestart": {"Limit": -1}}), "limit must be 0 or more"),
        (
            json!({"Name": "s", "OnUpdate": "ignore", "CheckRestart": {"Limit": 2}}),
            "check_restart cannot be used with on_update",
        ),
        (
            json!({"Name": "s", "Checks": [{"Type": "tcp", "Interval": "1s", "Timeout": "1s"}]}),
            "The check needs a port",
        ),
    ] {
        let found = of(service.clone());
        assert!(found.len() == 1 && found[0].contains(expected), "{service}: {expected:?} in {found:#?}");
        assert!(found[0].starts_with("Task group app validation failed: Service "), "{found:?}");
    }
    assert_eq!(checked(json!({"Type": "http", "Path": "/x"})), Vec::<String>::new());
    assert_eq!(
        checked(json!({"Type": "script", "Command": "x", "TaskName": "web", "PortLabel": ""})),
        Vec::<String>::new()
    );
    assert_eq!(
        checked(
            json!({"Type": "http", "Path": "/", "Protocol": "https", "TLSServerName": "web", "TLSSkipVerify": true})
        ),
        Vec::<String>::new()
    );
    assert_eq!(
        checked(json!({"Type": "grpc", "GRPCService": "s", "GRPCUseTLS": true, "TLSServerName": "web"})),
        Vec::<String>::new()
    );
    for (check, expected) in [
        (json!({"Type": "tcp", "GRPCUseTLS": true}), "are for checks of type grpc"),
        (json!({"Type": "grpc", "TLSSkipVerify": true}), "are for checks over TLS"),
        (json!({"Type": "http", "Path": "/", "TLSServerName": "web"}), "are for checks over TLS"),
        (json!({"Type": "http", "Path": "/", "Protocol": "ftp"}), "Invalid protocol"),
        (json!({"Type": ""}), "A check needs a type"),
        (json!({"Type": "ttl"}), "Invalid check type \"ttl\""),
        (json!({"Type": "http"}), "needs a path"),
        (json!({"Type": "http", "Path": "x"}), "must begin with a slash"),
        (json!({"Type": "http", "Path": "/", "Method": "G E"}), "Invalid method"),
        (json!({"Type": "script", "TaskName": "web"}), "needs a command"),
        (json!({"Type": "script", "Command": "x"}), "needs a task to run in"),
        (json!({"Interval": "0s"}), "interval (0s) can not be lower than 1s"),
        (json!({"Timeout": "10ms"}), "timeout (10ms) can not be lower than 1s"),
        (json!({"PortLabel": "none"}), "Port label \"none\" does not exist"),
        (json!({"InitialStatus": "good"}), "Invalid initial_status"),
        (json!({"SuccessBeforePassing": -1}), "success_before_passing must be 0 or more"),
        (
            json!({"FailuresBeforeCritical": 2, "FailuresBeforeWarning": 3}),
            "must not be greater than failures_before_critical",
        ),
        (json!({"CheckRestart": {"Limit": 1, "Grace": "-1s"}}), "grace must not be negative"),
    ] {
        let found = checked(check.clone());
        assert!(found.len() == 1 && found[0].contains(expected), "{check}: {expected:?} in {found:#?}");
    }
    let twice = json!({"Services": [{"Name": "s", "Provider": "nomad"}]});
    let found = errors(&small(json!({}), twice.clone(), twice));
    assert!(
        found.iter().any(|e| e.ends_with("Service s with port \"\" is declared twice, by the group and by web")),
        "{found:?}"
    );
}

#[test]
fn networks() {
    let of = |network: serde_json::Value| errors(&small(json!({}), json!({"Networks": [network]}), json!({})));
    let port = json!([{"Label": "http", "To": 80}]);
    for mode in ["host", "bridge", "none", "cni/mine"] {
        assert_eq!(of(json!({"Mode": mode, "DNS": {"Servers": ["1.1.1.1"]}})), Vec::<String>::new(), "{mode}");
    }
    let full = json!({"Mode": "cni/mine", "Hostname": "h", "CNI": {"Args": {"a": "b"}}, "DynamicPorts": port});
    assert_eq!(of(full), Vec::<String>::new());
    for mode in ["cni/", "macvlan"] {
        let found = of(json!({"Mode": mode}));
        assert!(found.len() == 1 && found[0].contains("Invalid network mode"), "{mode}: {found:?}");
    }
}

#[test]
fn passive_blocks_are_accepted() {
    let j = small(
        json!({"Meta": {"a": "b"}, "UI": {"Description": "x"}}),
        json!({"Scaling": {"Min": 1, "Max": 3, "Policy": {"cooldown": "1m"}},
            "Spreads": [{"Attribute": "${node.datacenter}"}]}),
        json!({"Actions": [{"Name": "x", "Command": "/bin/true"}], "ScalingPolicies": [{"Type": "vertical_cpu"}]}),
    );
    assert_eq!(errors(&j), Vec::<String>::new());
}

#[test]
fn warnings() {
    let j = small(json!({}), json!({"Networks": [{"MBits": 10}]}), json!({"Resources": {"IOPS": 5}}));
    let w = validate::validate(&j).expect("valid");
    assert_eq!(
        w.to_string(),
        "2 warning(s):\n\n* Group \"app\" has warnings: mbits is deprecated and has no effect; remove it from the \
            network block\n* Task \"web\" has \
         warnings: iops has been deprecated and has no effect; remove it"
    );
    assert_eq!(validate::Warnings::default().to_string(), "");
}

#[test]
fn names_are_such_that_people_and_programs_can_use_them() {
    let none = || json!({});
    let long = "x".repeat(257);
    let of_job = |id: &str| errors(&small(json!({"ID": id, "Name": "fine"}), none(), none()));
    for (id, part) in [
        ("a\rb", "contains '\\r'"),
        ("a\u{1b}[31m", "contains '\\u{1b}'"),
        ("a\u{202e}b", "contains '\\u{202e}'"),
        ("a\u{2066}b", "contains '\\u{2066}'"),
        ("..", "cannot be"),
        (".", "cannot be"),
        ("../../svc", "cannot be"),
        ("a/./b", "cannot be"),
        (&long, "has 257 characters"),
    ] {
        let found = of_job(id);
        assert!(found.len() == 1 && found[0].starts_with("Job ID") && found[0].contains(part), "{id:?}: {found:?}");
    }
    for fine in ["x/allocations", "x//y", "..x", "a\nb", "größe", "a%2Fb", "日本", &"x".repeat(256)] {
        assert_eq!(of_job(fine), [""; 0], "{fine:?}");
    }
    for (job, part) in [
        (small(json!({"Name": "a\nb"}), none(), none()), "Job name"),
        (small(none(), json!({"Name": "../x"}), none()), "Task group name"),
        (small(none(), json!({"Name": "a\tb"}), none()), "Task group name"),
        (small(none(), none(), json!({"Name": "a\nb"})), "Task name"),
        (small(none(), none(), json!({"Env": {"A\nB": "x"}})), "env name \"A\\nB\""),
        (small(none(), json!({"Volumes": {"v\n": {"Type": "host", "Source": "s"}}}), none()), "Volume name"),
        (small(none(), json!({"Networks": [{"DynamicPorts": [{"Label": "a\u{7}"}]}]}), none()), "Port label"),
    ] {
        let found = errors(&job);
        assert!(found.iter().any(|e| e.contains(part)), "{part}: {found:?}");
    }
}
