//! `drover completion SHELL`.

use clap::Args as ClapArgs;
use clap_complete::Shell;

/// Arguments.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args, command: &mut clap::Command) {
    // The scripts of the common shells leave every word to `drover complete`, which knows identifiers, short forms
    // and flags with one dash.
    let script = match args.shell {
        Shell::Bash => include_bytes!("completion.bash").to_vec(),
        Shell::Zsh => include_bytes!("completion.zsh").to_vec(),
        Shell::Fish => include_bytes!("completion.fish").to_vec(),
        other => {
            let mut script = Vec::new();
            clap_complete::generate(other, command, "drover", &mut script);
            script
        }
    };
    crate::output::bytes(&script);
}
