//! Proofs: what the servers give a node with what they tell it, so that later servers know their own word again.
//!
//! Servers whose state is from the past ask nodes what they have. Whoever has a node's way in could claim anything
//! then. So each allocation, remote order and host volume that goes to a node carries a proof: a MAC under a key that
//! only the servers have, over the words of its *statement*. The node keeps the proof and gives it back. It cannot make
//! one for another node, allocation or job.
//!
//! A proof names the generation and the index of what it proves. So servers can tell what their state lacks from what
//! it has had and has forgotten since.

use std::{fmt, str::FromStr};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::{
    alloc::Allocation,
    ids::{ClusterId, GenerationId, NodeId, StoreIndex},
    remote::RemoteOrder,
    volume::DynamicVolume,
};

/// Bytes of a MAC: HMAC-SHA256.
pub const MAC_BYTES: usize = 32;
/// Bytes of a proof: two ids, an index, a MAC.
const BYTES: usize = 16 + 16 + 8 + MAC_BYTES;

/// SHA-256 of a text.
pub type Digest = [u8; 32];

/// The digest of a text as it was sent.
#[must_use]
pub fn digest(text: &[u8]) -> Digest {
    Sha256::digest(text).into()
}

/// What stands for a text that an inventory has said before. No JSON begins so.
#[must_use]
pub fn reference(digest: &Digest) -> Vec<u8> {
    [b"=".as_slice(), digest].concat()
}

/// The digest of a text, and whether it is only referred to.
#[must_use]
pub fn text_or_reference(text: &[u8]) -> (Digest, bool) {
    match text.strip_prefix(b"=").and_then(|rest| rest.try_into().ok()) {
        Some(referred) => (referred, true),
        None => (digest(text), false),
    }
}

/// A proof, as nodes keep it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The root key under which it was made.
    pub key: Uuid,
    /// When the servers' state got what is proven.
    pub at: Point,
    /// The MAC of the statement.
    pub mac: [u8; MAC_BYTES],
}

/// A point of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// The generation.
    pub generation: GenerationId,
    /// The index in it.
    pub index: StoreIndex,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(self.key.as_bytes());
        bytes.extend(self.at.generation.0.as_bytes());
        bytes.extend(self.at.index.to_be_bytes());
        bytes.extend(self.mac);
        f.write_str(&URL_SAFE_NO_PAD.encode(bytes))
    }
}

/// A text that is no proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a proof")]
pub struct NotAProof;

impl FromStr for Proof {
    type Err = NotAProof;

    fn from_str(text: &str) -> Result<Self, NotAProof> {
        // No more is decoded than a proof has: the text comes from a node.
        let bytes = if text.len() > BYTES * 2 { return Err(NotAProof) } else { URL_SAFE_NO_PAD.decode(text) };
        let bytes = bytes.map_err(|_| NotAProof)?;
        let (key, rest) = bytes.split_first_chunk::<16>().ok_or(NotAProof)?;
        let (generation, rest) = rest.split_first_chunk::<16>().ok_or(NotAProof)?;
        let (index, mac) = rest.split_first_chunk::<8>().ok_or(NotAProof)?;
        Ok(Self {
            key: Uuid::from_bytes(*key),
            at: Point { generation: GenerationId(Uuid::from_bytes(*generation)), index: u64::from_be_bytes(*index) },
            mac: mac.try_into().map_err(|_| NotAProof)?,
        })
    }
}

/// Whom something was told, and since when it is so.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The cluster.
    pub cluster: ClusterId,
    /// The node.
    pub node: NodeId,
    /// When the servers' state got it.
    pub at: Point,
}

/// A statement as it is written: each word with its length in front, so that no two statements are one text.
struct Words(Vec<u8>);

impl Words {
    /// Statements of one kind never equal those of another.
    fn of(kind: &str, told: Told) -> Self {
        let mut words = Self(Vec::with_capacity(512));
        words.text("drover proof 1").text(kind);
        words.id(told.cluster.0).id(told.node.0).id(told.at.generation.0).number(told.at.index);
        words
    }

    fn word(&mut self, word: &[u8]) -> &mut Self {
        self.0.extend((word.len() as u64).to_be_bytes());
        self.0.extend(word);
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.word(text.as_bytes())
    }

    fn id(&mut self, id: Uuid) -> &mut Self {
        self.word(id.as_bytes())
    }

    fn number(&mut self, number: u64) -> &mut Self {
        self.word(&number.to_be_bytes())
    }

    /// A value that is written as one name.
    fn name<T: serde::Serialize>(&mut self, name: &T) -> &mut Self {
        self.word(&serde_json::to_vec(name).unwrap_or_default())
    }
}

/// The statement about an allocation whose job was sent as that text: what decides which work it is, where, and whether
/// the servers want it. What the node itself finds out is not part of it.
#[must_use]
pub fn of_alloc(told: Told, alloc: &Allocation, job: &Digest) -> Vec<u8> {
    let mut words = Words::of("allocation", told);
    words.id(alloc.id.0).text(alloc.namespace.as_str()).text(alloc.job_id.as_str()).number(alloc.job_version).word(job);
    words.text(&alloc.task_group).text(&alloc.name).name(&alloc.desired_status).number(alloc.alloc_modify_index);
    words.id(alloc.deployment_id.0).id(alloc.previous_allocation.0).number(alloc.remote.len() as u64);
    for (task, incarnation) in alloc.remote.iter() {
        words.text(task).id(incarnation.0);
    }
    words.0
}

/// The statement about an order: what a node may do with which instance of the slot, and for which allocation. The
/// handle is not part of it: the node may have found it since.
#[must_use]
pub fn of_order(told: Told, order: &RemoteOrder) -> Vec<u8> {
    let mut words = Words::of("remote order", told);
    words.text(&order.slot.to_string()).id(order.incarnation.0).number(order.epoch).id(order.alloc_id.0);
    words.text(&order.driver).text(&order.provider).name(&order.role).name(&order.desired);
    words.number(order.acknowledge.into());
    words.0
}

/// The statement about a host volume: which one it is, who may use it, and what for. Its place and capacity are not
/// part of it: its node says them.
#[must_use]
pub fn of_volume(told: Told, volume: &DynamicVolume) -> Vec<u8> {
    let mut words = Words::of("host volume", told);
    words.id(volume.id.0).text(volume.namespace.as_str()).text(&volume.name).text(&volume.plugin_id);
    words.number(volume.revision).number(volume.registered.into()).number(volume.deleting.into());
    words.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{DesiredStatus, ids::AllocId};

    fn told(node: u128) -> Told {
        let at = Point { generation: GenerationId(Uuid::from_u128(3)), index: 40 };
        Told { cluster: ClusterId(Uuid::from_u128(1)), node: NodeId(Uuid::from_u128(node)), at }
    }

    proptest! {
        #[test]
        fn a_proof_is_read_as_it_was_written(key: u128, generation: u128, index: u64, mac: [u8; MAC_BYTES]) {
            let at = Point { generation: GenerationId(Uuid::from_u128(generation)), index };
            let proof = Proof { key: Uuid::from_u128(key), at, mac };
            prop_assert_eq!(proof.to_string().parse(), Ok(proof));
        }

        #[test]
        fn any_other_text_is_none(text: String) {
            prop_assert_eq!(text.parse::<Proof>(), Err(NotAProof));
        }

        /// What a node has read from JSON and written as JSON again makes the same statement.
        #[test]
        fn a_statement_survives_json(
            namespace: String,
            name: String,
            group: String,
            version: u64,
            index: u64,
            id: u128,
        ) {
            let alloc = Allocation {
                id: AllocId(Uuid::from_u128(id)),
                namespace: namespace.as_str().into(),
                name: name.as_str().into(),
                task_group: group.as_str().into(),
                job_version: version,
                alloc_modify_index: index,
                desired_status: DesiredStatus::Evict,
                remote: [("t".into(), crate::IncarnationId(Uuid::from_u128(id)))].into_iter().collect(),
                ..Allocation::default()
            };
            let again: Allocation = serde_json::from_slice(&serde_json::to_vec(&alloc).unwrap()).unwrap();
            prop_assert_eq!(of_alloc(told(2), &again, &digest(b"{}")), of_alloc(told(2), &alloc, &digest(b"{}")));
            let order = RemoteOrder { epoch: version, driver: name, provider: group, ..RemoteOrder::default() };
            let again: RemoteOrder = serde_json::from_slice(&serde_json::to_vec(&order).unwrap()).unwrap();
            prop_assert_eq!(of_order(told(2), &again), of_order(told(2), &order));
        }
    }

    #[test]
    fn whatever_differs_makes_another_statement() {
        let alloc = Allocation { namespace: "ab".into(), job_id: "c".into(), ..Allocation::default() };
        let all = [
            of_alloc(told(2), &alloc, &digest(b"{}")),
            of_alloc(told(3), &alloc, &digest(b"{}")),
            of_alloc(told(2), &alloc, &digest(b"{ }")),
            of_alloc(
                told(2),
                &Allocation { namespace: "a".into(), job_id: "bc".into(), ..alloc.clone() },
                &digest(b"{}"),
            ),
            of_alloc(told(2), &Allocation { desired_status: DesiredStatus::Stop, ..alloc.clone() }, &digest(b"{}")),
            of_alloc(told(2), &Allocation { alloc_modify_index: 1, ..alloc.clone() }, &digest(b"{}")),
            of_alloc(Told { at: Point { index: 41, ..told(2).at }, ..told(2) }, &alloc, &digest(b"{}")),
            of_order(told(2), &RemoteOrder::default()),
            of_order(told(2), &RemoteOrder { epoch: 1, ..RemoteOrder::default() }),
            of_volume(told(2), &DynamicVolume::default()),
            of_volume(told(2), &DynamicVolume { name: "v".to_owned(), ..DynamicVolume::default() }),
        ];
        for (i, one) in all.iter().enumerate() {
            assert!(!all[..i].contains(one), "statement {i} is another's");
        }
    }
}
