//! The driver as a plugin of its own.

fn main() -> std::process::ExitCode {
    driver_sdk::block_on(exec::serve())
}
