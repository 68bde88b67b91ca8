//! This program starts itself as the processes that are to choose.

use std::{env, process::Command, thread};

use allocator::Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::of_command("agent");

/// In a process that this one starts: what it is to choose.
const EXPECTED: &str = "ALLOCATOR_TEST_EXPECTED";

fn pieces() -> Vec<Vec<u8>> {
    let sizes = [1, 7, 8, 64, 100, 1 << 10, 10_000, 1 << 17, 1 << 20, 40 << 20];
    sizes.iter().enumerate().map(|(n, size)| vec![n as u8 + 1; *size]).collect()
}

fn are_whole(pieces: &[Vec<u8>]) -> bool {
    pieces.iter().enumerate().all(|(n, piece)| piece.iter().all(|byte| usize::from(*byte) == n + 1))
}

/// Its name is a command too: the harness takes the first word for the beginning of tests to run.
#[test]
fn agent_or_not_a_process_keeps_to_what_it_has_chosen() {
    let Ok(expected) = env::var(EXPECTED) else {
        for (words, expected) in [(["agent", "agent"], "mimalloc"), (["--nocapture", "agent"], "system")] {
            let child =
                Command::new(env::current_exe().expect("this program")).args(words).env(EXPECTED, expected).output();
            let child = child.expect("it starts");
            let told = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
            assert!(child.status.success() && told.contains("1 passed"), "{words:?}: {told}");
        }
        return;
    };
    assert_eq!(ALLOCATOR.is_mimalloc(), expected == "mimalloc", "{expected} was expected");
    let mut here = pieces();
    for (n, piece) in here.iter_mut().enumerate() {
        piece.extend(vec![n as u8 + 1; piece.len()]);
        piece.truncate(piece.len() / 3 + 1);
        piece.shrink_to_fit();
    }
    assert!(are_whole(&here) && vec![0_u8; 3 << 20].iter().all(|byte| *byte == 0));
    // Freed where it was not allocated, both ways.
    let there = thread::spawn(move || (are_whole(&here), pieces())).join().expect("no panic");
    assert!(there.0 && are_whole(&there.1));
}
