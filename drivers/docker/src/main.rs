//! The drivers as a plugin of their own: `docker`, or `docker_remote` with the argument `remote`.

fn main() -> std::process::ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("remote") => driver_sdk::block_on(docker::serve_remote()),
        _ => driver_sdk::block_on(docker::serve()),
    }
}
