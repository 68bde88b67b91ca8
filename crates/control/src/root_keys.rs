//! Root keys: what becomes of the others when one is made, and what is due.

use model::{TimestampNs, signing::KeyState};
use uuid::Uuid;

/// A key, as these decisions need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Id.
    pub id: Uuid,
    /// What it is used for.
    pub state: KeyState,
    /// When a prepublished key becomes active, Unix ns.
    pub publish_time: TimestampNs,
    /// Whether it encrypts variables.
    pub encrypts: bool,
}

/// The states that other keys get with a new one. `full`: their variables are encrypted again. `ahead`: the new one is
/// published before its use.
#[must_use]
pub fn beside_a_new_one(keys: &[Standing], full: bool, ahead: bool) -> Vec<(Uuid, KeyState)> {
    let next = |key: &Standing| match key.state {
        // One key at a time waits for its turn.
        KeyState::Prepublished => Some(KeyState::Inactive),
        KeyState::Active if !ahead => Some(if full && key.encrypts { KeyState::Rekeying } else { KeyState::Inactive }),
        KeyState::Inactive if full && key.encrypts => Some(KeyState::Rekeying),
        _ => None,
    };
    keys.iter().filter_map(|key| Some((key.id, next(key)?))).collect()
}

/// What is to be done with the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chore {
    /// A prepublished key takes over: the states that keys get.
    Activate(Vec<(Uuid, KeyState)>),
    /// The active key encrypts no variables: make one that does.
    Replace,
    /// Encrypt the variables of these keys again.
    Reseal(Vec<Uuid>),
}

/// What is due first. None = nothing now.
#[must_use]
pub fn chore(keys: &[Standing], may_encrypt: bool, now: TimestampNs) -> Option<Chore> {
    let due = |key: &&Standing| key.state == KeyState::Prepublished && key.publish_time <= now;
    if let Some(next) = keys.iter().find(due) {
        let before = keys.iter().filter(|key| key.state == KeyState::Active).map(|key| (key.id, KeyState::Inactive));
        return Some(Chore::Activate(std::iter::once((next.id, KeyState::Active)).chain(before).collect()));
    }
    let active = keys.iter().find(|key| key.state == KeyState::Active);
    if may_encrypt && active.is_none_or(|key| !key.encrypts) {
        return Some(Chore::Replace);
    }
    let old: Vec<Uuid> = keys.iter().filter(|key| key.state == KeyState::Rekeying).map(|key| key.id).collect();
    (!old.is_empty()).then_some(Chore::Reseal(old))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u128, state: KeyState) -> Standing {
        Standing { id: Uuid::from_u128(id), state, publish_time: 100, encrypts: id < 10 }
    }

    #[test]
    fn others_step_back_for_a_new_key() {
        let keys = [
            key(1, KeyState::Active),
            key(2, KeyState::Inactive),
            key(3, KeyState::Rekeying),
            key(4, KeyState::Prepublished),
            key(11, KeyState::Inactive),
        ];
        let ids = |changes: Vec<(Uuid, KeyState)>| -> Vec<(u128, KeyState)> {
            changes.into_iter().map(|(id, state)| (id.as_u128(), state)).collect()
        };
        use KeyState::{Inactive, Rekeying};
        assert_eq!(ids(beside_a_new_one(&keys, false, false)), [(1, Inactive), (4, Inactive)]);
        assert_eq!(ids(beside_a_new_one(&keys, true, false)), [(1, Rekeying), (2, Rekeying), (4, Inactive)]);
        assert_eq!(ids(beside_a_new_one(&keys, false, true)), [(4, Inactive)], "the active one goes on");
    }

    #[test]
    fn chores_in_their_order() {
        let (one, two) = (key(1, KeyState::Active), key(2, KeyState::Prepublished));
        assert_eq!(chore(&[one, two], true, 99), None, "its time has not come");
        let states = vec![(two.id, KeyState::Active), (one.id, KeyState::Inactive)];
        assert_eq!(chore(&[one, two], true, 100), Some(Chore::Activate(states)));
        let old = key(11, KeyState::Active);
        assert_eq!(chore(&[old], true, 0), Some(Chore::Replace));
        assert_eq!(chore(&[old], false, 0), None, "not all servers read it");
        let rekeying = key(3, KeyState::Rekeying);
        assert_eq!(chore(&[one, rekeying], true, 0), Some(Chore::Reseal(vec![rekeying.id])));
    }
}
