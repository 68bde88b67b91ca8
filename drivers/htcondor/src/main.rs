//! The driver as a plugin.

fn main() -> std::process::ExitCode {
    driver_sdk::block_on(htcondor::serve())
}
