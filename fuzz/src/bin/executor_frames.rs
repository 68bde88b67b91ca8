//! Frames between executors and their clients: whatever comes, in whatever pieces, nothing is read twice or past a
//! refusal.
#![no_main]

use executor_proto::{Reply, Request, host, split_frame};
use libfuzzer_sys::fuzz_target;

fn read<M: prost::Message + Default>(bytes: &[u8]) {
    let mut buffer = Vec::new();
    for piece in bytes.chunks(7) {
        buffer.extend_from_slice(piece);
        loop {
            let before = buffer.len();
            match split_frame::<M>(&mut buffer) {
                Ok(Some(_)) => assert!(buffer.len() < before, "a frame takes room"),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    read::<Request>(bytes);
    read::<Reply>(bytes);
    read::<host::HostRequest>(bytes);
    read::<host::HostReply>(bytes);
});
