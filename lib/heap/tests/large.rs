//! In a process of its own: what it has resident is measured, and the setting is that of the process.
#![cfg(target_env = "gnu")]

fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_large_piece_is_the_system_s_again_when_it_is_freed() {
    assert!(heap::part_large_pieces());
    // The first one of its size would have moved the limit; the next ones would come from an arena, each with a small
    // one behind it that stays.
    let mut small = Vec::new();
    let before = resident();
    for n in (1..=8).rev() {
        let large = vec![1_u8; n << 20];
        small.push(Box::new([large[7]; 4096]));
        drop(large);
    }
    let more = resident().saturating_sub(before);
    assert!(more < 2 << 20, "{more} bytes stay for {} small pieces", small.len());
}
