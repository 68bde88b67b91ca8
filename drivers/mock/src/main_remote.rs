//! The remote mock driver as a plugin of its own.

use std::process::ExitCode;

fn main() -> ExitCode {
    driver_sdk::block_on(mock::serve_remote())
}
