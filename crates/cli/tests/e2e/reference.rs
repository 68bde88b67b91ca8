//! The page of drivers' options says what the drivers say of themselves.

use std::process::Command;

use crate::{agent::drover, page};

#[test]
fn the_reference_of_drivers_is_current() {
    for driver in ["docker", "docker_remote", "exec", "raw_exec", "remote_exec"] {
        let out = Command::new(drover()).args(["driver", "schema", driver]).output().expect("runs");
        assert!(out.status.success(), "{driver}: {}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).expect("text");
        // The first line is the driver and its release; the headings go below that of the driver.
        let (_, tables) = text.split_once('\n').expect("more than a line");
        page::check("drivers/options.md", driver, &tables.replace("\n## ", "\n### "));
    }
}
