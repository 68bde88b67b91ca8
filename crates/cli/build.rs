//! Links `drover` at a fixed address.
//!
//! An agent is several processes of this one program. Position-independent, each of them has its own copy of every
//! table that holds an address (1.1 MiB), and all of them read the list of those places (1.6 MiB) at their start. At
//! a fixed address both are pages of the file, which the processes share. Stack, heap, mappings and shared libraries
//! stay at random addresses. Programs written in Go are linked so as well.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|v| v == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu") {
        println!("cargo:rustc-link-arg-bin=drover=-no-pie");
    }
}
