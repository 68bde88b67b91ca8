//! Addresses of artifacts with one option on a second line: what is understood is the same after the way to the
//! fetching process.
#![no_main]

use std::collections::BTreeMap;

use artifact::Source;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let (address, option) = text.split_once('\n').unwrap_or((text, ""));
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let options = BTreeMap::from([(name.to_owned(), value.to_owned())]);
    if let Ok(source) = Source::parse(address, &options) {
        let wire = serde_json::to_vec(&source).expect("it can be sent to the fetcher");
        let back: Source = serde_json::from_slice(&wire).expect("which reads it");
        assert_eq!(back, source);
    }
});
