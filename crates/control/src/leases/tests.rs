//! Which nodes lose their lease when, without a clock.

use super::*;
use uuid::Uuid;

const SECOND: Duration = Duration::from_secs(1);
const RULES: Rules =
    Rules { wait: Duration::from_secs(10), quiet: Duration::from_secs(6), longest_gap: Duration::from_secs(3) };

fn nodes<const N: usize>() -> [NodeId; N] {
    std::array::from_fn(|n| NodeId(Uuid::from_u128(n as u128 + 1)))
}

fn now() -> Boot {
    Boot::since(SECOND * 1_000)
}

fn look(leases: &mut Leases, now: Boot, gap: Duration) -> (Vec<NodeId>, Looked) {
    let mut looked = leases.look(now, gap, &RULES);
    (std::mem::take(&mut looked.gone), looked)
}

#[test]
fn leases_run_out_in_order_unless_renewed() {
    let mut leases = Leases::default();
    let [a, b] = nodes();
    let now = now();
    leases.grant(a, now + SECOND);
    leases.grant(b, now + SECOND * 2);
    assert!(leases.renew(a, now + SECOND * 10));
    let (gone, looked) = look(&mut leases, now + SECOND * 3, Duration::ZERO);
    assert_eq!(gone, [b]);
    assert!(looked.next.is_some_and(|next| next > now + SECOND * 5));
    assert!(!leases.renew(b, now + SECOND * 10), "a lease that has run out cannot be renewed");
    leases.watch(b, now + SECOND);
    assert!(!leases.renew(b, now + SECOND * 10), "nor can one that is only waited for");
    assert_eq!(look(&mut leases, now + SECOND * 4, Duration::ZERO).0, [b]);
    leases.watch(b, now + SECOND);
    leases.grant(b, now + SECOND);
    assert!(leases.renew(b, now + SECOND * 10), "it was ready again");
}

#[test]
fn who_is_about_to_be_ready_is_waited_for_and_cannot_renew_yet() {
    let mut leases = Leases::default();
    let [a, b] = nodes();
    let now = now();
    leases.grant(a, now + SECOND);
    for node in [a, b] {
        leases.expect(node, now + SECOND * 5);
    }
    assert!(look(&mut leases, now + SECOND * 2, Duration::ZERO).0.is_empty());
    assert!(leases.renew(a, now + SECOND * 5), "it holds one already");
    assert!(!leases.renew(b, now + SECOND * 5), "nothing is stored yet");
    assert_eq!([a, b].map(|node| leases.knows(node)), [true; 2]);
    // However late the disk is: whoever is lost now would get a lease afterwards.
    for late in [5, 15, 60, 600] {
        let (gone, looked) = look(&mut leases, now + SECOND * late, Duration::ZERO);
        assert_eq!((gone, looked.next), (Vec::new(), Some(now + SECOND * late + RULES.wait)), "{late}");
        assert!(leases.renew(a, now + SECOND * late + RULES.wait), "no lease of its own was ever over");
    }
    for node in [a, b] {
        leases.expect_no_more(node);
    }
    assert!(look(&mut leases, now + SECOND * 609, Duration::ZERO).0.is_empty());
    assert_eq!(look(&mut leases, now + SECOND * 610, Duration::ZERO).0, [a, b], "nobody has granted one");
    assert_eq!([a, b].map(|node| leases.knows(node)), [false; 2]);
}

#[test]
fn who_is_about_to_be_ready_has_no_less_time_than_before_and_is_expected_once_for_each_decision() {
    let mut leases = Leases::default();
    let [a, b] = nodes();
    let now = now();
    leases.grant(a, now + SECOND * 20);
    leases.watch(b, now + SECOND * 20);
    for node in [a, b, b] {
        leases.expect(node, now + SECOND * 5);
    }
    let (gone, looked) = look(&mut leases, now + SECOND * 6, Duration::ZERO);
    assert_eq!((gone, looked.next), (Vec::new(), Some(now + SECOND * 20)));
    for node in [a, b] {
        leases.expect_no_more(node);
    }
    assert_eq!(look(&mut leases, now + SECOND * 20, Duration::ZERO).0, [a], "a session of the other one goes on");
    // It was removed meanwhile, and nothing is left of it at the end.
    leases.forget(b);
    assert!(leases.knows(b), "what makes it ready is still to be stored");
    leases.expect_no_more(b);
    leases.expect_no_more(b);
    assert!(!leases.knows(b) && leases.expected.is_empty());
    leases.grant(b, now + SECOND * 30);
    assert_eq!(look(&mut leases, now + SECOND * 30, Duration::ZERO).0, [b]);
}

#[test]
fn after_a_pause_of_the_server_every_lease_has_its_full_time_again() {
    let mut leases = Leases::default();
    let [a, b] = nodes();
    let now = now();
    leases.grant(a, now + SECOND * 10);
    leases.watch(b, now + SECOND * 10);
    let after = now + SECOND * 60;
    let (gone, looked) = look(&mut leases, after, SECOND * 50);
    assert!(gone.is_empty());
    let (why, spared) = looked.spared.unwrap();
    assert!(why.contains("stood still for 50.0 s"), "{why}");
    assert_eq!(spared.len(), 2, "a node that was cut off could not come back meanwhile either");
    assert_eq!(looked.next, Some(after + RULES.wait));
    assert!(leases.given_again().is_some());
    // A node that stays silent for all of that time is lost.
    assert_eq!(look(&mut leases, after + RULES.wait, Duration::ZERO).0.len(), 2);
}

#[test]
fn most_nodes_at_once_are_given_one_more_lease_and_then_lost() {
    let mut leases = Leases::default();
    let all: [NodeId; 10] = nodes();
    let now = now();
    for (n, node) in all.iter().enumerate() {
        leases.grant(*node, now + SECOND * 10 + Duration::from_millis(n as u64 * 300));
    }
    let first = now + SECOND * 11;
    let (gone, looked) = look(&mut leases, first, Duration::ZERO);
    assert!(gone.is_empty() && looked.spared.is_some_and(|(why, _)| why.contains("10 of 10 nodes")));
    // Two are heard again; the others are not.
    for node in &all[..2] {
        leases.renew(*node, now + SECOND * 60);
    }
    let (gone, looked) = look(&mut leases, first + SECOND * 9, Duration::ZERO);
    assert!(gone.is_empty() && looked.spared.is_none());
    let (gone, looked) = look(&mut leases, first + RULES.wait, Duration::ZERO);
    assert_eq!((gone.len(), looked.spared.is_none()), (8, true));
    // The suspicion is over: the next time, the servers suspect themselves again.
    look(&mut leases, first + SECOND * 12, Duration::ZERO);
    for node in &all {
        leases.grant(*node, now + SECOND * 60);
    }
    let (gone, looked) = look(&mut leases, now + SECOND * 90, Duration::ZERO);
    assert!(gone.is_empty() && looked.spared.is_some());
}

#[test]
fn a_few_nodes_are_lost_at_once() {
    let mut leases = Leases::default();
    let all: [NodeId; 10] = nodes();
    let now = now();
    for (n, node) in all.iter().enumerate() {
        leases.grant(*node, now + if n < 5 { SECOND } else { SECOND * 10 });
    }
    assert_eq!(look(&mut leases, now + SECOND * 2, Duration::ZERO).0.len(), 5);
}
