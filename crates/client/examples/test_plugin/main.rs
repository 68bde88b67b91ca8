//! The drivers that the tests of this crate run, as plugin processes: `test_plugin mock` and so on.

use std::process::ExitCode;

mod cloud;
mod fragile;
mod go_like;
mod pushing;
mod watching;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("mock") => driver_sdk::block_on(mock::serve()),
        Some("exec") => driver_sdk::block_on(exec::serve()),
        Some("raw_exec") => driver_sdk::block_on(raw_exec::serve()),
        Some("mock_remote") => driver_sdk::block_on(mock::serve_remote()),
        Some("mock_remote_plain") => driver_sdk::block_on(mock::serve_remote_as_plain()),
        Some("remote_exec") => driver_sdk::block_on(remote_exec::serve()),
        Some("artifact-fetch") => artifact::serve(),
        Some("go_like") => driver_sdk::block_on(driver_sdk::serve(go_like::Driver::new())),
        Some("cloud") => driver_sdk::block_on(driver_sdk::serve(cloud::Driver::default())),
        Some("pushing") => driver_sdk::block_on(driver_sdk::serve_remote(pushing::Driver)),
        Some("watching") => driver_sdk::block_on(driver_sdk::serve(watching::Driver::default())),
        Some("fragile") => match fragile::comes_up() {
            Ok(()) => driver_sdk::block_on(fragile::serve()),
            Err(code) => code,
        },
        Some("executor") => go_like::executor(),
        _ => ExitCode::from(2),
    }
}
