//! The pieces of a node's inventory, within bounds: whoever has a node's way in could fill the server's memory.

use api::node_rpc::Inventory;
use prost::Message as _;

/// Bytes of an inventory. A node with 10,000 allocations, each with a job of 20 KiB, says less than half of it.
const MOST_BYTES: usize = 512 * 1024 * 1024;
/// Pieces of an inventory. A node says 200 allocations in one.
const MOST_PIECES: usize = 4096;

/// The inventory that a session hears: one.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    so_far: Vec<Inventory>,
    bytes: usize,
    whole: bool,
}

impl Pieces {
    /// Adds a piece; after the last one, all of them.
    ///
    /// # Errors
    /// Why no more is heard, for people.
    pub(crate) fn add(&mut self, piece: Inventory) -> Result<Option<Vec<Inventory>>, String> {
        if self.whole {
            return Err("the node has told what it has already in this session".to_owned());
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
        let allocs = Allocs { jobs_json: vec![vec![b'j'; bytes]; allocs], ..Allocs::default() };
        Inventory { allocs: Some(allocs), more, ..Inventory::default() }
    }

    #[test]
    fn a_large_node_is_heard_and_an_endless_one_is_not() {
        let mut large = Pieces::default();
        for _ in 0..50 {
            assert_eq!(large.add(piece(200, 8 * 1024, true)), Ok(None));
        }
        assert_eq!(large.add(piece(0, 0, false)).unwrap().unwrap().len(), 51);
        assert!(large.add(piece(0, 0, false)).unwrap_err().contains("already"), "another one");

        let mut endless = Pieces::default();
        let heard = (0..10_000).take_while(|_| endless.add(piece(0, 0, true)).is_ok()).count();
        assert_eq!(heard, MOST_PIECES);
        let mut heavy = Pieces::default();
        let heard = (0..100).take_while(|_| heavy.add(piece(1, 60 * 1024 * 1024, true)).is_ok()).count();
        assert_eq!(heard, 8);
        assert!(heavy.so_far.is_empty(), "nothing of it is kept");
    }
}
