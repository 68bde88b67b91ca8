//! Pages of the documents as steps that a test follows: files are written, commands run, and they print what the page
//! says, in that order.

/// A step of a page.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A file that a reader makes: its name and text.
    File(String, String),
    /// A command and the lines that it prints, where `…` stands for anything.
    Run(String, Vec<String>),
    /// A command of a block `sh`, which prints nothing that the page shows.
    Prepare(String),
    /// The agent of this node ends.
    End(String),
}

/// Begins the comment that says that an agent ends here.
const ENDS: &str = "<!-- The test ends the agent of ";

/// The steps of a page: its blocks that are marked `console` or `sh`, or `hcl` with the name of a file in the first
/// line, or `json` with the name in the text before, between backticks.
///
/// # Panics
/// A block is of another kind, a file has no name, or something is printed before any command.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut lines = page.lines();
    let mut named = None;
    while let Some(line) = lines.next() {
        if let Some(rest) = line.strip_prefix(ENDS) {
            steps.push(Step::End(rest.trim_end_matches(" here. -->").to_owned()));
        }
        let Some(kind) = line.strip_prefix("```") else {
            named = line.rsplit('`').nth(1).or(named).filter(|_| !line.starts_with('#'));
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|l| *l != "```").collect();
        match kind {
            "console" => {
                for line in block {
                    match (line.strip_prefix("$ "), steps.last_mut()) {
                        (Some(command), _) => steps.push(Step::Run(command.to_owned(), Vec::new())),
                        (None, Some(Step::Run(_, printed))) => printed.push(line.to_owned()),
                        (None, _) => panic!("{line:?} stands before any command"),
                    }
                }
            }
            "hcl" => {
                let name = block[0].strip_prefix("# ").expect("the name of the file in its first line");
                steps.push(Step::File(name.to_owned(), block.join("\n")));
            }
            "json" => {
                let name = named.take().expect("the name of the file in the text before");
                steps.push(Step::File(name.to_owned(), block.join("\n")));
            }
            "sh" => steps.extend(block.iter().map(|line| Step::Prepare((*line).to_owned()))),
            kind => panic!("a block of {kind:?} is not followed"),
        }
    }
    steps
}

/// Whether a printed line is the one that the page shows. Blanks do not count.
fn shows(wanted: &str, line: &str) -> bool {
    let plain = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (parts, line): (Vec<String>, String) = (wanted.split('…').map(plain).collect(), plain(line));
    let [first, rest @ ..] = parts.as_slice() else { return false };
    let Some(mut left) = line.strip_prefix(first.as_str()) else { return false };
    for (n, part) in rest.iter().enumerate() {
        let last = n + 1 == rest.len();
        let at = if last && !part.is_empty() {
            left.ends_with(part.as_str()).then(|| left.len() - part.len())
        } else {
            left.find(part.as_str())
        };
        match at {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    // Without a part behind the last `…` anything may follow; without any `…` nothing.
    !rest.is_empty() || left.is_empty()
}

/// The lines of the page that are not printed, in order; a line that is `…` alone stands for any number of lines.
#[must_use]
pub fn missing(wanted: &[String], printed: &str) -> Option<String> {
    let mut lines = printed.lines();
    wanted.iter().filter(|w| *w != "…").find(|wanted| !lines.any(|line| shows(wanted, line))).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_name_itself_is_named_before() {
        let page = "Write `a` into `b.json`:\n\n```json\n{}\n```\n";
        assert_eq!(steps(page), [Step::File("b.json".into(), "{}".into())]);
    }

    #[test]
    fn lines_are_compared_as_people_do() {
        for (wanted, line, same) in [
            ("… ready", "80d65ac4  default  dc1  vm  false  eligible  ready", true),
            ("… Name … Status", "ID  Name  Class  Status", true),
            ("… Name … Status", "ID  Class  Status", false),
            ("inside greet", "inside greet", true),
            ("inside greet", "inside greets", false),
            ("Status      = running", "Status = running", true),
            ("…exit code 3…", "    task t: exit code 3; stderr: cannot", true),
            ("Hello from greet on …, number 1", "Hello from greet on vm, number 1", true),
            ("Hello from greet on …, number 1", "Hello from greet on vm, number 11", false),
        ] {
            assert_eq!(shows(wanted, line), same, "{wanted:?} and {line:?}");
        }
    }
}
