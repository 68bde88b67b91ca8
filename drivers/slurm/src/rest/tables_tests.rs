use serde_json::json;

use super::*;

fn bytes(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// The row of a job in a form: up to v0.0.38 as 22.05.8 has answered, later ones by the OpenAPI description.
fn row(later: bool, number: u64, array: (u64, Option<u64>, &str), name: &str, states: &[&str]) -> Value {
    let n = |number: Option<u64>| match (later, number) {
        (true, number) => json!({"set": number.is_some(), "infinite": false, "number": number.unwrap_or(0)}),
        (false, number) => json!(number),
    };
    json!({
        "job_id": number, "array_job_id": n(Some(array.0)), "array_task_id": n(array.1), "array_task_string": array.2,
        "name": name, "job_state": if later { json!(states) } else { json!(states[0]) }, "nodes": "n1",
        "state_reason": "None", "user_id": 7, "user_name": "alice", "time_limit": n(None), "flags": ["X"],
    })
}

fn read(later: bool, rows: &[Value]) -> Vec<(String, String, String)> {
    let body = bytes(&json!({"meta": {}, "errors": [], "warnings": [], "jobs": rows}));
    let told = |job: Job| (job.id.to_string(), job.name, job.state);
    jobs(&body, 7, None).unwrap_or_else(|why| panic!("{later}: {why}")).into_iter().map(told).collect()
}

#[test]
fn jobs_are_read_in_both_forms() {
    for later in [false, true] {
        let rows = [
            row(later, 7, (0, None, ""), "k-1", &["RUNNING"]),
            row(later, 9, (8, Some(0), ""), "array.x", &["COMPLETED", "COMPLETING"]),
            row(later, 8, (8, None, "3-4,7%2"), "array.x", &["PENDING"]),
        ];
        let state = if later { "COMPLETING" } else { "COMPLETED" };
        let wanted = [
            ("7", "k-1", "RUNNING"),
            ("8_0", "array.x", state),
            ("8_3", "array.x", "PENDING"),
            ("8_4", "array.x", "PENDING"),
            ("8_7", "array.x", "PENDING"),
        ];
        let wanted = wanted.map(|(id, name, state)| (id.to_owned(), name.to_owned(), state.to_owned()));
        assert_eq!(read(later, &rows), wanted, "{later}");
    }
}

#[test]
fn of_states_the_one_that_leaves_processes_decides() {
    for (states, wanted) in [
        (&["RUNNING"][..], "RUNNING"),
        (&["CANCELLED", "COMPLETING"], "COMPLETING"),
        (&["PENDING", "REQUEUED", "COMPLETING"], "COMPLETING"),
        (&["RUNNING", "CONFIGURING"], "CONFIGURING"),
        (&["PENDING", "REQUEUE_HOLD"], "REQUEUE_HOLD"),
        (&["NODE_FAIL"], "NODE_FAIL"),
        (&["RUNNING", "SIGNALING"], "RUNNING"),
    ] {
        assert_eq!(read(true, &[row(true, 1, (0, None, ""), "k", states)])[0].2, wanted, "{states:?}");
    }
    assert_eq!(state(&Words::None), "");
}

#[test]
fn jobs_of_others_are_left_out() {
    let body = bytes(&json!({"jobs": [
        {"job_id": 1, "job_state": "RUNNING", "name": "k", "user_id": 7, "user_name": null},
        {"job_id": 2, "job_state": "RUNNING", "name": "k", "user_id": 8, "user_name": "bob"},
        {"job_id": 3, "job_state": "RUNNING", "name": "k", "user_id": 9, "user_name": "alice"},
        {"job_id": 4, "job_state": "RUNNING", "name": "k", "user_id": 10, "user_name": ""},
    ]}));
    let ids = |user| jobs(&body, 7, user).expect("jobs").iter().map(|job| job.id.number).collect::<Vec<_>>();
    assert_eq!((ids(None), ids(Some("alice"))), (vec![1], vec![1, 3]));
}

#[test]
fn what_is_no_whole_list_is_no_queue() {
    for body in [
        "",
        "{}",
        "[]",
        "null",
        r#"{"jobs": null}"#,
        r#"{"jobs": [{"name": "k"}]}"#,
        r#"{"jobs": [{"job_id": null, "job_state": "RUNNING", "user_id": 7}]}"#,
        r#"{"jobs": [{"job_id": 1, "job_st"#,
        r#"{"jobs": [], "errors": [{"error_number": -1, "error": "Unspecified error"}]}"#,
        r#"{"jobs": [{"job_id": 1, "array_job_id": 1, "job_state": "PENDING", "user_id": 7}]}"#,
        "<html>Bad Gateway</html>",
    ] {
        assert!(jobs(body.as_bytes(), 7, None).is_err(), "{body}");
    }
    assert_eq!(jobs(br#"{"jobs": []}"#, 7, None), Ok(Vec::new()));
}

#[test]
fn indices_that_were_cut_off_are_all_that_may_be_meant() {
    let no = |_| false;
    assert_eq!(indices("0-2,5", no), Ok(vec![0, 1, 2, 5]));
    assert_eq!(indices("0-20:10%4", no), Ok(vec![0, 10, 20]));
    assert_eq!(indices("7", no), Ok(vec![7]));
    let cut = indices("3-4,99...", |index| index > 10 || index == 6).expect("indices");
    assert_eq!(cut, [3, 4, 5, 7, 8, 9, 10]);
    // As 22.05.8 has cut it off: 42 and 44 were cancelled, so they stand by themselves.
    let real = "4-9,11-12,14,16,18,20,22-23,25,27,29,31-32,34,36,38,40-41,43...";
    let cut = indices(real, |index| index > 50 || [42, 44].contains(&index)).expect("indices");
    assert_eq!(cut[cut.len() - 9..], [40, 41, 43, 45, 46, 47, 48, 49, 50]);
    for wrong in ["", "x", "1-x", "1-5:0", "%3", "0-4294967295"] {
        assert!(indices(wrong, no).is_err(), "{wrong}");
    }
}

#[test]
fn accounts_are_read_in_both_forms() {
    let earlier = json!({"job_id": 9, "name": "a", "nodes": "n1", "state": {"current": "CANCELLED", "reason": "None"},
        "array": {"job_id": 8, "task_id": 3}});
    let later = json!({"job_id": 9, "name": "a", "nodes": "None assigned", "state": {"current": ["CANCELLED"]},
        "array": {"job_id": 8, "task_id": {"set": true, "infinite": false, "number": 3}}});
    let single = json!({"job_id": 9, "name": "k", "nodes": "", "state": {"current": ["NODE_FAIL"]},
        "array": {"job_id": 0, "task_id": {"set": false, "infinite": false, "number": 0}}});
    for (one, id, nodes) in [(earlier, "8_3", "n1"), (later, "8_3", ""), (single, "9", "")] {
        let found = accounts(&bytes(&json!({"jobs": [one], "errors": []}))).expect("jobs").remove(0);
        assert_eq!((found.id.to_string().as_str(), found.nodes.as_str()), (id, nodes), "{found:?}");
    }
    assert!(accounts(br#"{"errors": [{"error": "Unable to query"}], "jobs": []}"#).is_err());
}

#[test]
fn a_node_is_heard_only_in_a_known_state() {
    let of = |nodes: Value, wanted: &str| heard(&bytes(&json!({"nodes": nodes})), wanted);
    let earlier = |state: &str, flags: &[&str]| json!({"name": "n1", "state": state, "state_flags": flags});
    let later = |states: &[&str]| json!({"name": "n1", "state": states});
    for good in [earlier("idle", &[]), earlier("mixed", &["COMPLETING"]), later(&["IDLE"]), later(&["MIXED", "DRAIN"])]
    {
        assert!(of(json!([good]), "n1"), "{good}");
    }
    for bad in [
        earlier("mixed", &["NOT_RESPONDING"]),
        earlier("down", &[]),
        earlier("unknown", &[]),
        later(&["IDLE", "NOT_RESPONDING"]),
        later(&["IDLE", "POWERED_DOWN"]),
        later(&["DOWN"]),
        later(&[]),
    ] {
        assert!(!of(json!([bad]), "n1"), "{bad}");
    }
    assert!(!of(json!([later(&["IDLE"])]), "n[1-2]") && !of(json!([]), "n1") && !of(json!([]), "?"));
    assert!(!of(json!([later(&["IDLE"])]), ""));
}

#[test]
fn expressions_of_nodes_are_written_out() {
    for (text, wanted) in [
        ("n1", Some(vec!["n1"])),
        ("n[1-3,07],m", Some(vec!["n1", "n2", "n3", "n07", "m"])),
        ("r[08-10]", Some(vec!["r08", "r09", "r10"])),
        ("r[1-2]n[1,3]", Some(vec!["r1n1", "r1n3", "r2n1", "r2n3"])),
        ("n[1-999999999]", None),
        ("n[1", None),
        ("n[a-b]", None),
        (",", None),
    ] {
        let wanted = wanted.map(|names| names.into_iter().map(str::to_owned).collect());
        assert_eq!(hosts(text), wanted, "{text}");
    }
}

/// The first ones as 22.05.8 has answered, the others by the OpenAPI description.
#[test]
fn each_refusal_is_told_from_what_may_have_been_taken() {
    let earlier = |code: i64, text: &str| json!({"errors": [{"error_code": code, "error": text}]});
    let later = |code: i64, text: &str| {
        let error =
            json!({"error_number": code, "error": text, "description": "", "source": "slurm_submit_batch_job()"});
        json!({"errors": [error], "job_id": 0, "step_id": ""})
    };
    for form in [&earlier as &dyn Fn(i64, &str) -> Value, &later] {
        for (status, code, text, wanted) in [
            (500, 2000, "Invalid partition name specified", Some(Refusal::Wrong)),
            (500, 2029, "Invalid feature specification", Some(Refusal::Wrong)),
            (500, 2066, "Invalid qos specification", Some(Refusal::Wrong)),
            (400, 9001, "Failure during parsing", Some(Refusal::Wrong)),
            (500, 2081, "Invalid job array specification", Some(Refusal::Array)),
            (500, 2007, "Unable to create job record, try again", Some(Refusal::Full)),
            (500, 11, "Resource temporarily unavailable", Some(Refusal::Full)),
            (500, 2050, "Job violates accounting/QOS policy (job submit limit)", Some(Refusal::Full)),
            // What an expired token, and a controller that is down, look like.
            (500, 5005, "Zero Bytes were transmitted or received", None),
            (500, 1800, "Unable to contact slurm controller (connect failure)", None),
            (500, -1, "Unspecified error", None),
            (500, 5004, "Socket timed out on send/recv operation", None),
        ] {
            assert_eq!(refusal(status, &bytes(&form(code, text))), wanted, "{status} {code} {text}");
        }
    }
    for body in ["", "Authentication failure", "<html>502</html>", "{}", r#"{"errors": []}"#] {
        assert_eq!(refusal(502, body.as_bytes()), None, "{body}");
    }
}

#[test]
fn a_job_that_was_taken_has_a_number() {
    for (body, wanted) in [
        (json!({"job_id": 6, "errors": [{"error_code": 2015, "error": "not available now"}]}), Some(6)),
        (json!({"result": {"job_id": 7, "error_code": 0}, "job_id": 7}), Some(7)),
        (json!({"result": {"job_id": 7}}), Some(7)),
        (json!({"job_id": {"set": true, "infinite": false, "number": 8}}), Some(8)),
        (json!({"job_id": 0, "errors": []}), None),
        (json!({"errors": []}), None),
        (json!([]), None),
    ] {
        assert_eq!(job_id(&bytes(&body)), wanted, "{body}");
    }
}

#[test]
fn complaints_are_told_once() {
    let told = |error: Value| errors(&bytes(&json!({"errors": [error]}))).remove(0);
    let unknown = told(json!({
        "description": "unable to kill JobId=9 with signal 9: Invalid job id specified", "error_number": 2017,
        "error": "Invalid job id specified", "source": "slurm_kill_job",
    }));
    assert_eq!(unknown.number, 2017);
    assert_eq!(unknown.text, "unable to kill JobId=9 with signal 9: Invalid job id specified");
    assert_eq!(told(json!({})).text, "error -1");
    let status = json!({"status": [
        {"error": {"code": 0, "string": "No error"}, "job_id": {"set": true, "number": 1}},
        {"error": {"code": 2021, "string": "Already done", "message": ""}, "step_id": "8_1"},
    ]});
    assert_eq!(signal_errors(&bytes(&status)).iter().map(|fault| fault.number).collect::<Vec<_>>(), [2021]);
}

#[test]
fn the_best_version_is_taken_and_the_one_that_ends_arrays_last() {
    let of = |paths: &[&str]| {
        let paths: serde_json::Map<String, Value> = paths.iter().map(|path| ((*path).to_owned(), json!({}))).collect();
        served(&bytes(&json!({"openapi": "3.0.3", "paths": paths})))
    };
    let taken =
        |slurm, accounting: Option<u32>| Ok(Served { slurm: Version(slurm), accounting: accounting.map(Version) });
    assert_eq!(of(&["/slurm/v0.0.38/ping", "/slurm/v0.0.36/ping", "/openapi"]), taken(38, None));
    assert_eq!(of(&["/slurm/v0.0.38/ping", "/slurm/v0.0.39/jobs", "/slurmdb/v0.0.39/jobs/"]), taken(38, Some(39)));
    assert_eq!(of(&["/slurm/v0.0.39/jobs", "/slurm/v0.0.40/jobs/", "/slurmdb/v0.0.40/jobs/"]), taken(40, Some(40)));
    assert_eq!(of(&["/slurm/v0.0.39/jobs"]), taken(39, None));
    assert!(of(&["/slurm/v0.0.37/jobs"]).is_err() && of(&[]).is_err() && served(b"garbage").is_err());
}

#[test]
fn a_controller_that_answers_is_up_in_all_forms() {
    for (ping, up) in [
        (json!({"hostname": "vm", "ping": "UP", "status": 0, "mode": "primary"}), true),
        (json!({"hostname": "vm", "pinged": "UP", "mode": "primary"}), true),
        (json!({"hostname": "vm", "responding": true, "primary": true}), true),
        (json!({"hostname": "vm", "ping": "DOWN"}), false),
        (json!({"hostname": "vm", "pinged": "DOWN", "responding": false}), false),
    ] {
        assert_eq!(pinged(&bytes(&json!({"pings": [ping]}))), up, "{ping}");
    }
    assert!(!pinged(b"{}") && !pinged(br#"{"pings": []}"#));
    let meta = |name: &str| bytes(&json!({"meta": {name: {"release": "22.05.8"}}}));
    assert_eq!((release(&meta("Slurm")).as_str(), release(&meta("slurm")).as_str()), ("22.05.8", "22.05.8"));
    let time_of = |value: Value| time(&bytes(&json!({"statistics": {"req_time": value}})));
    assert_eq!(time_of(json!(1_795_856_345)), Some(1_795_856_345));
    assert_eq!(time_of(json!({"set": true, "infinite": false, "number": 5})), Some(5));
    assert_eq!(time_of(json!(null)), None);
}

#[test]
fn a_version_is_read_and_written() {
    assert_eq!("v0.0.40".parse::<Version>(), Ok(Version(40)));
    assert_eq!(Version(38).to_string(), "v0.0.38");
    for wrong in ["v0.0.37", "0.0.40", "v1.0.40", ""] {
        assert!(wrong.parse::<Version>().is_err(), "{wrong}");
    }
}
