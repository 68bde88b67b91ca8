//! The formatter: formatting twice changes nothing more, and what could be read can still be read.
#![no_main]

use hcl_lang::{Source, fmt::format, parse_body};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let source = Source::new("f.hcl", text);
    let Ok(once) = format(&source) else { return };
    let formatted = Source::new("f.hcl", once.as_str());
    assert!(parse_body(&formatted).is_ok(), "the formatted text cannot be read:\n{once}");
    let twice = format(&formatted).expect("formatted again");
    assert_eq!(once, twice, "formatted twice");
});
