//! New ids and pseudo-random choices, all from the seed.

use uuid::Uuid;

/// `SplitMix64`: small, and good enough for ids that only have to differ and for choices that only have to vary.
#[derive(Clone, Debug)]
pub(crate) struct Ids(u64);

pub(crate) fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Ids {
    /// From the seed and the subject of the run, so that runs with one seed make different ids.
    pub(crate) fn new(seed: u64, about: Uuid) -> Self {
        let (a, b) = about.as_u64_pair();
        Self(mix(seed) ^ mix(a.rotate_left(17) ^ mix(b)))
    }
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }
    pub(crate) fn uuid(&mut self) -> Uuid {
        let (a, b) = (self.next(), self.next());
        uuid::Builder::from_random_bytes(((u128::from(a) << 64) | u128::from(b)).to_be_bytes()).into_uuid()
    }
    /// Breaks ties between nodes: differs by seed, so that equal nodes share the load over evaluations.
    pub(crate) fn salt(&mut self) -> u64 {
        self.next()
    }
}
