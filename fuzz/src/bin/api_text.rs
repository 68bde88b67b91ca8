//! What the HTTP API reads besides JSON: filters over a row, query strings, names of slots, durations.
#![no_main]

use api::{filter::Filter, query};
use model::ids::SlotKey;

libfuzzer_sys::fuzz_target!(|text: &str| {
    let row = serde_json::json!({
        "ID": "web", "Count": 3, "Meta": {"a.b": "c", "": ""}, "Tags": ["x", "y"],
        "Nested": [{"Up": true, "Load": 0.5}], "Nothing": null,
    });
    if let Ok(filter) = Filter::parse(text) {
        drop(filter.matches(&row));
    }
    if let Ok(asked) = query::Query::parse(text) {
        drop((query::Blocking::parse(&asked), query::ListOptions::parse(&asked), asked.namespace(), asked.pretty()));
    }
    if let Some(plain) = query::percent_decode(text, false) {
        assert_eq!(query::percent_decode(&query::percent_encode(&plain), false).as_deref(), Some(plain.as_str()),
            "there and back");
    }
    if let Ok(slot) = text.parse::<SlotKey>() {
        assert_eq!(slot.to_string().parse::<SlotKey>().as_ref(), Ok(&slot), "a slot's name says which slot it is");
    }
    drop(hcl_lang::parse_duration(text));
    if let Ok(duration) = text.parse::<model::GoDuration>() {
        assert_eq!(duration.to_string().parse::<model::GoDuration>().ok(), Some(duration), "a duration as it is shown");
    }
});
