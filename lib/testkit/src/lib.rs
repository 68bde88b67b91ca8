//! What the tests of all crates and the checks of `xtask` share: bounded waits, free ports, directories and
//! processes that end with their test, lines that can be cut, HTTP byte by byte, pages
//! of the documents as steps to follow. How a test says that it cannot
//! check its subject here is in `skip`, which has no dependency at all.
//!
//! It knows nothing of jobs, drivers or servers: those worlds live beside the suites that play in them. Never a
//! dependency of what is shipped. Begin reading with [`until`] and [`eventually`].

mod http;
mod page;
mod place;
mod process;
#[path = "../../../crates/cli/src/demo/sweep.rs"]
mod sweep;
mod unbroken;
mod wait;
mod wire;

pub use http::{Answer as HttpAnswer, ask, read_answer};
pub use page::{Step, missing, steps};
pub use place::{Dir, beside_the_tests, free_port, free_ports};
pub use process::{Guard, command_line, environment, pids, program, signal, try_signal};
pub use sweep::{end_everything_of, processes_of};
pub use unbroken::Unbroken;
pub use wait::{Answer, InVain, PATIENCE, eventually, poll, soon, try_until, until};
pub use wire::Wire;
