//! Job files, in HCL and JSON: what is read has a canonical form that validates or is refused, and is the same after a
//! way over the wire.
#![no_main]

use jobspec::{ParseInput, parse, render};

libfuzzer_sys::fuzz_target!(|text: &str| {
    match parse(&ParseInput { strict: false, ..ParseInput::new("job.hcl", text) }) {
        Err(errors) => assert!(!render(&errors, true).is_empty(), "a refusal says why"),
        Ok(parsed) => {
            let mut job = parsed.job;
            job.canonicalize();
            let once = job.clone();
            job.canonicalize();
            assert_eq!(once, job, "a canonical job stays as it is");
            drop(model::validate::validate(&job));
            let wire = serde_json::to_vec(&job).expect("a job can be sent");
            let back: model::Job = serde_json::from_slice(&wire).expect("what was sent can be read");
            assert_eq!(back, job, "the same after the way over the wire");
        }
    }
});
