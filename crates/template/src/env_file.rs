//! A rendered template as environment: lines of `KEY=value`, as shells write them.

/// Reads the variables of a text, in their order.
///
/// Empty lines and comments are left out, `export` before a name is allowed. Values stand plain (up to ` #`), between
/// `'` (as they are) or between `"` (with `\n`, `\r`, `\t`, `\"`, `\\`, `\$`, `` \` ``).
///
/// # Errors
/// The line that holds no variable, and why.
pub fn parse_env(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut variables = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |why: &str| format!("line {} of the result is no KEY=value: {why}", n + 1);
        let line = line.strip_prefix("export ").map_or(line, str::trim_start);
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("there is no = in it"))?;
        let name = name.trim();
        if name.is_empty()
            || name.starts_with(|c: char| c.is_ascii_digit())
            || name.contains(|c: char| c.is_whitespace() || c.is_control())
        {
            return Err(wrong("what stands before = cannot be a name"));
        }
        variables.push((name.to_owned(), value_of(value.trim()).map_err(wrong)?));
    }
    Ok(variables)
}

fn value_of(text: &str) -> Result<String, &'static str> {
    let mut out = String::new();
    let mut chars = text.chars().peekable();
    let mut before = ' ';
    while let Some(c) = chars.next() {
        match c {
            '\'' => loop {
                match chars.next().ok_or("a ' is not closed")? {
                    '\'' => break,
                    c => out.push(c),
                }
            },
            '"' => loop {
                match chars.next().ok_or("a \" is not closed")? {
                    '"' => break,
                    '\\' => out.push(match chars.next().ok_or("a \" is not closed")? {
                        'n' => '\n',
                        'r' => '\r',
                        't' => '\t',
                        c @ ('"' | '\'' | '\\' | '$' | '`') => c,
                        _ => return Err("there is no such escape; write \\\\ for a backslash"),
                    }),
                    c => out.push(c),
                }
            },
            '#' if before.is_whitespace() => {
                out.truncate(out.trim_end().len());
                break;
            }
            '\0' => return Err("a variable cannot hold a null character"),
            c => out.push(c),
        }
        before = c;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_as_shells_write_them() {
        for (text, wanted) in [
            ("A=1", Ok(vec![("A", "1")])),
            ("# comment\n\nA=1\r\n export B = two words # comment\n", Ok(vec![("A", "1"), ("B", "two words")])),
            (
                "A='x # $y'\nB=\"a\\n\\\"b\\\"\"\nC=\nD=a#b",
                Ok(vec![("A", "x # $y"), ("B", "a\n\"b\""), ("C", ""), ("D", "a#b")]),
            ),
            ("A=1\nnothing", Err("line 2 of the result is no KEY=value: there is no = in it")),
            ("1A=1", Err("line 1 of the result is no KEY=value: what stands before = cannot be a name")),
            ("A=\"x", Err("line 1 of the result is no KEY=value: a \" is not closed")),
        ] {
            let wanted = wanted
                .map(|v: Vec<(&str, &str)>| {
                    v.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect::<Vec<_>>()
                })
                .map_err(str::to_owned);
            assert_eq!(parse_env(text), wanted, "{text}");
        }
    }
}
