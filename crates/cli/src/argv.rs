//! Nomad's flags have one dash (`-json`, `-var=k=v`); clap's long flags have two. One dash is rewritten to two, so that muscle memory and scripts work.

/// Rewrites every `-name` (two letters or more) into `--name`, up to a bare `--`. Negative numbers and single letters stay.
pub(crate) fn rewrite(args: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut verbatim = false;
    args.into_iter()
        .enumerate()
        .map(|(position, arg)| {
            if verbatim || position == 0 {
                return arg;
            }
            if arg == "--" {
                verbatim = true;
                return arg;
            }
            let Some(rest) = arg.strip_prefix('-') else {
                return arg;
            };
            let name = rest.split('=').next().unwrap_or_default();
            let is_flag = name.len() > 1 && name.starts_with(|c: char| c.is_ascii_alphabetic());
            if is_flag { format!("--{rest}") } else { arg }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::rewrite;

    #[test]
    fn one_dash_becomes_two() {
        for (input, output) in [
            ("drover job run -detach -var=a=b x.hcl", "drover job run --detach --var=a=b x.hcl"),
            ("drover alloc logs -f -tail -n 5 abc", "drover alloc logs -f --tail -n 5 abc"),
            ("drover node drain --enable -deadline -1", "drover node drain --enable --deadline -1"),
            ("drover job plan -", "drover job plan -"),
            ("drover alloc exec a -- ls -la", "drover alloc exec a -- ls -la"),
            ("-weird agent", "-weird agent"),
        ] {
            let got = rewrite(input.split(' ').map(str::to_owned));
            assert_eq!(got.join(" "), output, "{input}");
        }
    }
}
