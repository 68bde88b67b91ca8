//! The drivers that the tests of this crate run, as plugin processes: `test_plugin mock`, `test_plugin raw_exec`.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("mock") => driver_sdk::block_on(mock::serve()),
        _ => ExitCode::from(2),
    }
}
