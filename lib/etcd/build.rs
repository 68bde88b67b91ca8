//! Generates the client of etcd, and the server that fakes are made of, without an external compiler.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = Path::new("proto");
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed=build.rs");
    let descriptors = protox::compile([dir.join("rpc.proto")], [dir])?;
    tonic_prost_build::configure().include_file("etcd_rpc.rs").compile_fds(descriptors)?;
    Ok(())
}
