//! What is refused, with which text, and what a write leaves.

use model::JobAcl;

use super::*;

const NOW: TimestampNs = 1_700_000_000_000_000_000;
const TTL: Ttl = Ttl { min: Duration::from_secs(60), max: Duration::from_secs(24 * 3600) };

fn stamp(index: u64) -> Stamp {
    Stamp { index, now: NOW }
}

/// Ids that count.
fn counting() -> impl FnMut() -> Uuid {
    let mut n = 0;
    move || {
        n += 1;
        Uuid::from_u128(n)
    }
}

fn apply(state: &mut State, batch: Batch) {
    state.apply(state.latest_index() + 1, NOW, batch).expect("no conditions");
}

fn text<R>(decided: Result<Decided<R>, Refused>) -> String {
    match decided {
        Err(Refused::BadRequest(text)) => text,
        Err(other) => panic!("another status: {other:?}"),
        Ok(_) => "ok".to_owned(),
    }
}

fn one(what: &str, text: &str) -> String {
    format!("{what} 0 invalid: 1 error occurred:\n\t* {text}\n\n")
}

fn client(policies: &[&str]) -> AclToken {
    AclToken {
        kind: token_type::CLIENT.into(),
        policies: policies.iter().map(|p| (*p).to_owned()).collect(),
        ..AclToken::default()
    }
}

/// A policy `p`, a role `ops` with the id `r`.
fn filled() -> State {
    let mut state = State::new();
    let policy = AclPolicy { name: "p".into(), ..AclPolicy::default() };
    apply(&mut state, put_policy(policy, stamp(2)).expect("fine").batch);
    let role = AclRole { id: "r".into(), name: "ops".into(), ..AclRole::default() };
    apply(&mut state, Change::PutAclRole(Box::new(role)).into());
    state
}

#[test]
fn policies_are_refused_with_nomads_texts() {
    let policy = |name: &str| AclPolicy { name: name.into(), ..AclPolicy::default() };
    let job = |namespace: &str, job_id: &str, group: &str, task: &str| AclPolicy {
        job_acl: Some(JobAcl {
            namespace: namespace.into(),
            job_id: job_id.into(),
            group: group.into(),
            task: task.into(),
        }),
        ..policy("p")
    };
    for (given, wrong) in [
        (policy("a_b"), "invalid name 'a_b'"),
        (policy(""), "invalid name ''"),
        (policy(&"x".repeat(129)), &*format!("invalid name '{}'", "x".repeat(129))),
        (AclPolicy { description: "x".repeat(257), ..policy("p") }, "description longer than 256"),
        (job("", "j", "", ""), "namespace must be set to set job ID"),
        (job("n", "", "g", ""), "job ID must be set to set group"),
        (job("n", "j", "", "t"), "group must be set to set task"),
    ] {
        assert_eq!(text(put_policy(given, stamp(9))), one("policy", wrong));
    }
    let both = AclPolicy { description: "x".repeat(257), ..policy("a_b") };
    let wrong = "policy 0 invalid: 2 errors occurred:\n\t* invalid name 'a_b'\n\t* description longer than 256\n\n";
    assert_eq!(text(put_policy(both, stamp(9))), wrong);
    for fine in [policy(&"x".repeat(128)), job("n", "j", "g", "t"), job("n", "", "", "")] {
        assert_eq!(text(put_policy(fine, stamp(9))), "ok");
    }
}

#[test]
fn tokens_are_refused_with_nomads_texts() {
    let state = filled();
    let put = |token: AclToken| text(put_token(&state, token, TTL, stamp(9), &mut counting()));
    let after = |secs: i64| AclToken { expiration_ttl: GoDuration::from_secs(secs), ..client(&["p"]) };
    let management = AclToken { kind: token_type::MANAGEMENT.into(), ..client(&["p"]) };
    for (given, wrong) in [
        (client(&[]), "client token missing policies or roles"),
        (management, "management token cannot be associated with policies or roles"),
        (AclToken { kind: "x".into(), ..client(&["p"]) }, "token type must be client or management"),
        (AclToken { name: "x".repeat(257), ..client(&["p"]) }, "token name too long"),
        (after(48 * 3600), "expiration time cannot be more than 24h0m0s in the future (was 48h0m0s)"),
        (after(5), "expiration time cannot be less than 1m0s in the future (was 5s)"),
        (after(-5), "token expiration TTL '-5s' should not be negative"),
        (
            AclToken { expiration_time: (NOW + 1).into(), ..after(3600) },
            "token expiration TTL and expiration time cannot be used together",
        ),
    ] {
        assert_eq!(put(given), one("token", wrong));
    }
    let role = |id: &str, name: &str| AclToken {
        roles: vec![AclTokenRole { id: id.into(), name: name.into() }],
        ..client(&[])
    };
    let ids = |accessor: &str, secret: &str| AclToken {
        accessor_id: accessor.into(),
        secret_id: secret.into(),
        ..client(&["p"])
    };
    let id = Uuid::from_u128(7).to_string();
    for (given, wrong) in [
        (role("x", ""), "cannot find role x"),
        (role("", "x"), "cannot find role x"),
        (role("r", ""), "ok"),
        (role("", "ops"), "ok"),
        (ids(&id, ""), &*format!("cannot find token {id}")),
        (ids("a", &id), "accessor and secret of a token must be UUIDs"),
        (ids(&id, &id), "ok"),
        (
            AclToken { kind: "management".into(), policies: vec![], ..ids(&id, &id) },
            "only a client token may be made with given ids",
        ),
        (client(&["unknown-policies-pass"]), "ok"),
    ] {
        assert_eq!(put(given), wrong);
    }
}

#[test]
fn a_changed_token_keeps_what_cannot_change() {
    let mut state = filled();
    let new = AclToken { expiration_ttl: GoDuration::from_secs(3600), ..client(&["p", "p", "q"]) };
    let decided = put_token(&state, new, TTL, stamp(9), &mut counting()).expect("fine");
    apply(&mut state, decided.batch);
    let made = state.acl_token(&decided.answer).expect("made").clone();
    assert_eq!(made.policies, ["p", "q"], "each once");
    assert_eq!(made.expiration_time.ns(), Some(NOW + 3_600_000_000_000));
    assert_ne!(&*made.accessor_id, made.secret_id.reveal());
    let put = |token: AclToken| put_token(&state, token, TTL, Stamp { index: 10, now: NOW + 1 }, &mut counting());
    let change = |edit: fn(&mut AclToken)| {
        let mut token = AclToken::clone(&made);
        edit(&mut token);
        token
    };
    assert_eq!(text(put(change(|t| t.global = true))), "cannot toggle global mode");
    assert_eq!(text(put(change(|t| t.expiration_time = 5.into()))), "cannot change expiration time");
    assert_eq!(text(put(change(|t| t.secret_id = "another".into()))), "cannot change the secret of a token");
    let renamed = AclToken { accessor_id: made.accessor_id.clone(), name: "n".into(), ..client(&["q"]) };
    let batch = put(renamed).expect("fine").batch;
    apply(&mut state, batch);
    let after = state.acl_token(&made.accessor_id).expect("there");
    assert_eq!((&*after.name, &after.policies), ("n", &vec!["q".to_owned()]));
    assert_eq!((&after.secret_id, &after.create_time), (&made.secret_id, &made.create_time));
    assert_eq!(after.expiration_time, made.expiration_time);
    let gone = delete_tokens(&state, &["x".to_owned(), made.accessor_id.to_string()], stamp(11));
    assert_eq!(text(gone), "Cannot delete nonexistent tokens: x");
}

#[test]
fn roles_are_refused_with_nomads_texts() {
    let state = filled();
    let role = |id: &str, name: &str, policies: &[&str]| AclRole {
        id: id.into(),
        name: name.into(),
        policies: policies.iter().map(|p| AclRolePolicy { name: (*p).to_owned() }).collect(),
        ..AclRole::default()
    };
    for (given, wrong) in [
        (role("", "a_b", &["p"]), one("role", "invalid name 'a_b'")),
        (role("", "a", &[]), one("role", "at least one policy should be specified")),
        (role("", "a", &["x"]), "cannot find policy x".to_owned()),
        (role("x", "a", &["p"]), "cannot find role x".to_owned()),
        (role("", "ops", &["p"]), "role with name ops already exists".to_owned()),
        (role("r", "ops", &["p", "p"]), "ok".to_owned()),
    ] {
        assert_eq!(text(put_role(&state, given, &mut counting())), wrong);
    }
}

#[test]
fn a_second_bootstrap_needs_the_index_of_the_first() {
    let mut state = filled();
    let decide = |state: &State, secret: &str, reset| bootstrap(state, secret, reset, stamp(9), &mut counting());
    assert_eq!(text(decide(&state, "x", None)), "invalid acl token");
    let first = decide(&state, "", Some(77)).expect("the first one needs no index");
    apply(&mut state, first.batch);
    let index = state.acl_bootstrap_index().expect("done");
    let token = state.acl_token(&first.answer).expect("made");
    assert!(token.management() && token.global && token.name == "Bootstrap Token");
    assert_eq!(text(decide(&state, "", None)), format!("ACL bootstrap already done (reset index: {index})"));
    let wrong = format!("Invalid bootstrap reset index (specified 77, reset index: {index})");
    assert_eq!(text(decide(&state, "", Some(77))), wrong);
    let gone = delete_tokens(&state, &[first.answer.to_string()], stamp(10)).expect("there").batch;
    apply(&mut state, gone);
    assert_eq!(text(decide(&state, "", None)), format!("ACL bootstrap already done (reset index: {index})"));
    let secret = Uuid::from_u128(99).to_string();
    let second = decide(&state, &secret, Some(index)).expect("the right index");
    apply(&mut state, second.batch);
    assert!(state.acl_token_by_secret(&secret).is_some());
    assert!(decide(&state, "", Some(index)).is_err(), "a file serves once");
}

#[test]
fn a_one_time_token_is_exchanged_once_in_its_time() {
    let mut state = filled();
    let made = put_token(&state, client(&["p"]), TTL, stamp(9), &mut counting()).expect("fine");
    apply(&mut state, made.batch);
    let once = one_time(made.answer.clone(), stamp(10), &mut counting());
    apply(&mut state, once.batch);
    let valid = i64::try_from(ONE_TIME_VALID.as_nanos()).expect("small");
    assert!(exchange(&state, "x", NOW).is_none());
    assert!(exchange(&state, &once.answer, NOW + valid).is_none());
    let mut later = state.clone();
    let old = collect(&later, Duration::ZERO, NOW + valid, 9);
    apply(&mut later, Batch::new(old));
    assert_eq!((later.one_time_tokens().count(), later.acl_tokens().count()), (0, 1));
    let exchanged = exchange(&state, &once.answer, NOW + valid - 1).expect("in time");
    assert_eq!(exchanged.answer.accessor_id, made.answer);
    apply(&mut state, exchanged.batch);
    assert!(exchange(&state, &once.answer, NOW).is_none(), "only once");
}

#[test]
fn an_expired_token_is_collected_after_the_threshold() {
    let mut state = filled();
    let new = AclToken { expiration_ttl: GoDuration::from_secs(3600), ..client(&["p"]) };
    let made = put_token(&state, new, TTL, stamp(9), &mut counting()).expect("fine");
    apply(&mut state, made.batch);
    let end = NOW + 3_600_000_000_000;
    let threshold = Duration::from_secs(60);
    assert!(collect(&state, threshold, end + 59_999_999_999, 9).is_empty());
    let old = collect(&state, threshold, end + 60_000_000_000, 9);
    apply(&mut state, Batch::new(old));
    assert_eq!(state.acl_tokens().count(), 0);
}
