//! `drover completion SHELL`.

use clap::Args as ClapArgs;

/// Arguments.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The shell
    shell: clap_complete::Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args, command: &mut clap::Command) {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "drover", &mut script);
    crate::output::bytes(&script);
}
