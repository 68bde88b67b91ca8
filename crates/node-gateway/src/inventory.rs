//! The pieces of a node's inventory, within bounds: whoever has a node's way in could fill the server's memory.

use std::collections::HashSet;

use api::node_rpc::Inventory;
use model::proof::{self, Digest};
use prost::Message as _;

/// Bytes of an inventory, with the text of each job once. A node with 10,000 allocations of as many jobs of 20 KiB says
/// less than half of it.
const MOST_BYTES: usize = 512 * 1024 * 1024;
/// Pieces of an inventory. A node says up to 200 allocations in one, or about 1 MiB.
const MOST_PIECES: usize = 16 * 1024;

/// What a session has heard of the one inventory that it takes.
#[derive(Debug, Default)]
pub(crate) struct InventorySoFar {
    so_far: Vec<Inventory>,
    bytes: usize,
    /// Texts of jobs that were said: a node says one for each allocation, and it is kept once.
    jobs: HashSet<Digest>,
    whole: bool,
}

impl InventorySoFar {
    /// Adds a piece; after the last one, all of them.
    ///
    /// # Errors
    /// Why no more is heard, for people.
    pub(crate) fn add(&mut self, mut piece: Inventory) -> Result<Option<Vec<Inventory>>, String> {
        if self.whole {
            return Err("the node has told what it has already in this session".to_owned());
        }
        for text in piece.allocs.iter_mut().flat_map(|allocs| &mut allocs.jobs_json) {
            let (digest, _) = proof::text_or_reference(text);
            if !self.jobs.insert(digest) {
                *text = proof::reference(&digest);
            }
        }
        self.bytes = self.bytes.saturating_add(piece.encoded_len());
        if self.bytes > MOST_BYTES || self.so_far.len() == MOST_PIECES {
            self.so_far = Vec::new();
            return Err(format!(
                "the node says to have more than a server takes: over {} MiB or {MOST_PIECES} pieces. It keeps its \
                    tasks as they are",
                MOST_BYTES / 1024 / 1024
            ));
        }
        self.whole = !piece.more;
        self.so_far.push(piece);
        Ok(self.whole.then(|| std::mem::take(&mut self.so_far)))
    }
}

#[cfg(test)]
mod tests {
    use api::node_rpc::Allocs;

    use super::*;

    fn piece(allocs: usize, bytes: usize, more: bool) -> Inventory {
        of_job(b'j', allocs, bytes, more)
    }

    fn of_job(job: u8, allocs: usize, bytes: usize, more: bool) -> Inventory {
        let allocs = Allocs { jobs_json: vec![vec![job; bytes]; allocs], ..Allocs::default() };
        Inventory { allocs: Some(allocs), more, ..Inventory::default() }
    }

    #[test]
    fn a_large_node_is_heard_and_an_endless_one_is_not() {
        let mut large = InventorySoFar::default();
        for _ in 0..50 {
            assert_eq!(large.add(piece(200, 8 * 1024, true)), Ok(None));
        }
        assert_eq!(large.add(piece(0, 0, false)).unwrap().unwrap().len(), 51);
        assert!(large.add(piece(0, 0, false)).unwrap_err().contains("already"), "another one");

        let mut endless = InventorySoFar::default();
        let heard = (0..100_000).take_while(|_| endless.add(piece(0, 0, true)).is_ok()).count();
        assert_eq!(heard, MOST_PIECES);
        let mut heavy = InventorySoFar::default();
        let heard = (0..100).take_while(|n| heavy.add(of_job(*n, 1, 60 * 1024 * 1024, true)).is_ok()).count();
        assert_eq!(heard, 8);
        // Many allocations of one large job are no more than that job.
        let mut one = InventorySoFar::default();
        assert!((0..12).all(|_| one.add(piece(1, 60 * 1024 * 1024, true)).is_ok()));
        assert!(heavy.so_far.is_empty(), "nothing of it is kept");
    }
}
