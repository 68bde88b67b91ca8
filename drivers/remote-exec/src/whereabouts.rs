//! Which host a create goes to, and which names lead to one host: hosts are known by the identity that is kept on them,
//! not by their names in an inventory.

use std::collections::BTreeMap;

use driver_sdk::{RemoteError, handle};
use serde::{Deserialize, Serialize};

/// Layout of [`Intent`].
const VERSION: u16 = 1;

/// What is kept of a create before it is sent: where it goes. Every later create of the key goes there and nowhere
/// else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Intent {
    /// Name of the host in the inventory of whoever chose it, for people and to begin with.
    pub(crate) host: String,
    /// Identity of the runtime on it.
    pub(crate) runtime: String,
}

impl Intent {
    pub(crate) fn new(host: &str, runtime: &str) -> Self {
        Self { host: host.to_owned(), runtime: runtime.to_owned() }
    }

    pub(crate) fn write(&self) -> Result<Vec<u8>, RemoteError> {
        handle::encode_intent(VERSION, self)
    }

    /// `None` where nothing is kept.
    pub(crate) fn read(kept: &[u8]) -> Result<Option<Self>, RemoteError> {
        handle::decode_intent(VERSION, kept)
    }
}

/// Who a host is: the identity of the runtime in its directory, and the boot of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) runtime: String,
    pub(crate) boot: String,
}

/// What a name of the inventory leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// A host of its own, or one of which nothing is known now.
    Own,
    /// The same host as that name.
    Same(String),
    /// Another machine with the very directory of that name's host.
    Shared(String),
}

/// What each name leads to. Of several names for one host the first one counts.
pub(crate) fn leads(names: &BTreeMap<String, Option<Identity>>) -> BTreeMap<String, Leads> {
    let mut first: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut found = BTreeMap::new();
    for (name, identity) in names {
        let leads = match identity {
            None => Leads::Own,
            Some(Identity { runtime, boot }) => match first.get(runtime.as_str()) {
                None => {
                    first.insert(runtime, (name, boot));
                    Leads::Own
                }
                Some((other, same)) if same == boot => Leads::Same((*other).to_owned()),
                Some((other, _)) => Leads::Shared((*other).to_owned()),
            },
        };
        found.insert(name.clone(), leads);
    }
    found
}

/// Where a create went, by the identity that was kept of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// To the host of this name.
    Host(String),
    /// To the host of the first name, which is a machine with the very directory of the second one's host: nothing that
    /// it says counts.
    Shared(String, String),
}

/// The host to which a create went, by the name that was kept if that still leads there, else by any other; None = no
/// name is known to lead there.
pub(crate) fn holder(names: &BTreeMap<String, Option<Identity>>, kept: &Intent) -> Option<Holder> {
    let there = |name: &&String| {
        names.get(*name).is_some_and(|known| known.as_ref().is_some_and(|known| known.runtime == kept.runtime))
    };
    let name = Some(&kept.host).filter(there).or_else(|| names.keys().find(there))?;
    Some(match leads(names).remove(name) {
        Some(Leads::Shared(other)) => Holder::Shared(name.clone(), other),
        _ => Holder::Host(name.clone()),
    })
}

/// What is wrong with two machines that have one directory.
pub(crate) fn shared(name: &str, other: &str) -> String {
    format!(
        "hosts {other} and {name} are two machines with one and the same directory, where neither knows the other's \
            processes; give each a `dir` of its own"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_host_are_one_and_a_shared_directory_is_none() {
        let at = |runtime: &str, boot: &str| Some(Identity { runtime: runtime.into(), boot: boot.into() });
        let names = [
            ("a", at("r1", "b1")),
            ("b", at("r1", "b1")),
            ("c", at("r2", "b1")),
            ("d", None),
            ("e", at("r1", "b2")),
            ("f", at("r2", "b1")),
            ("g", None),
        ];
        let found = leads(&names.map(|(name, identity)| (name.to_owned(), identity)).into());
        let wanted = [
            ("a", Leads::Own),
            ("b", Leads::Same("a".into())),
            ("c", Leads::Own),
            ("d", Leads::Own),
            ("e", Leads::Shared("a".into())),
            ("f", Leads::Same("c".into())),
            ("g", Leads::Own),
        ];
        assert_eq!(found, wanted.map(|(name, leads)| (name.to_owned(), leads)).into());
    }

    #[test]
    fn a_create_is_with_the_host_that_it_was_sent_to_whatever_its_name() {
        let at = |runtime: &str, boot: &str| Some(Identity { runtime: runtime.into(), boot: boot.into() });
        let names =
            [("a", at("r1", "b1")), ("b", at("r1", "b1")), ("c", at("r2", "b2")), ("d", None), ("e", at("r1", "b3"))];
        let names = names.map(|(name, identity)| (name.to_owned(), identity)).into();
        for (case, kept, wanted) in [
            ("by its name", Intent::new("c", "r2"), Some(Holder::Host("c".into()))),
            ("by its second name", Intent::new("b", "r1"), Some(Holder::Host("b".into()))),
            ("its name leads elsewhere now", Intent::new("a", "r2"), Some(Holder::Host("c".into()))),
            ("its name is away", Intent::new("d", "r1"), Some(Holder::Host("a".into()))),
            (
                "its name is another machine with a's directory",
                Intent::new("e", "r1"),
                Some(Holder::Shared("e".into(), "a".into())),
            ),
            ("nobody has it", Intent::new("a", "r9"), None),
        ] {
            assert_eq!(holder(&names, &kept), wanted, "{case}");
        }
    }

    #[test]
    fn what_is_kept_comes_back() {
        let intent = Intent::new("a", "r1");
        assert_eq!(Intent::read(&intent.write().unwrap()), Ok(Some(intent.clone())));
        assert_eq!(Intent::read(&[]), Ok(None));
        let later = handle::encode_intent(VERSION + 1, &intent).unwrap();
        for unknown in [later.as_slice(), b"rubbish"] {
            assert!(matches!(Intent::read(unknown), Err(RemoteError::CouldNotAsk(_))));
        }
    }
}
