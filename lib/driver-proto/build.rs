//! Generates the messages and services from `proto/` without an external compiler.

use std::path::Path;

const FILES: [&str; 9] = [
    "goplugin.proto",
    "health.proto",
    "status.proto",
    "structs.proto",
    "hclspec.proto",
    "base.proto",
    "device.proto",
    "driver.proto",
    "remote.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let descriptors = protox::compile(FILES.map(|file| dir.join(file)), [dir])?;
    tonic_prost_build::configure()
        // Ordered maps give stable bytes: a handle or configuration compares equal after a round trip.
        .btree_map(".")
        .include_file("protocols.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
