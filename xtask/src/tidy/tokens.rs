//! Rust read as words and marks: what is enough to see which names a file uses, inside macros as well.

use std::ops::Range;

/// A piece of a source file. Comments, lifetimes, numbers and characters are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Word(&'a str),
    /// What stands in the quotes of a string.
    Text(&'a str),
    /// `::`
    Colons,
    Mark(char),
}

/// Where a block comment ends that begins here.
fn comment_end(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        let rest = &text[at..];
        match (rest.find("/*"), rest.find("*/")) {
            (Some(open), Some(close)) if open < close => (at, depth) = (at + open + 2, depth + 1),
            (_, Some(close)) => (at, depth) = (at + close + 2, depth.saturating_sub(1)),
            (_, None) => return text.len(),
        }
        if depth == 0 {
            return at;
        }
    }
}

/// The text of a string whose opening quote stands at the beginning, and where it ends.
fn quoted(text: &str) -> (&str, usize) {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return (&text[1..at], at + 1),
            _ => {}
        }
    }
    (&text[1..], text.len())
}

/// As `quoted`, for a raw string, from behind its `r`; nothing when it is none.
fn raw(text: &str) -> Option<(&str, usize)> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let begin = hashes + text[hashes..].starts_with('"').then_some(1)?;
    let end = text[begin..].find(&format!("\"{}", "#".repeat(hashes))).map_or(text.len(), |end| begin + end);
    Some((&text[begin..end], (end + 1 + hashes).min(text.len())))
}

/// Where a character or a lifetime ends that begins here with its quote.
fn apostrophe(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, c))) => {
            text[at + c.len_utf8()..].find('\'').map_or(text.len(), |end| at + c.len_utf8() + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1 + text[1..].find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len() - 1),
    }
}

/// The tokens of a file.
pub(super) fn tokens(text: &str) -> Vec<Token<'_>> {
    scan(text).0
}

/// Where the raw strings of a file stand, with their quotes.
pub(super) fn raw_strings(text: &str) -> Vec<Range<usize>> {
    scan(text).1
}

fn scan(text: &str) -> (Vec<Token<'_>>, Vec<Range<usize>>) {
    let (mut found, mut raw_strings, mut at) = (Vec::new(), Vec::new(), 0);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        at += match c {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => comment_end(rest),
            _ if rest.starts_with("::") => {
                found.push(Token::Colons);
                2
            }
            '"' => {
                let (inner, end) = quoted(rest);
                found.push(Token::Text(inner));
                end
            }
            '\'' => apostrophe(rest),
            _ if c.is_alphabetic() || c == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                match (word, raw(after)) {
                    ("r" | "br" | "cr", Some((inner, length))) => {
                        found.push(Token::Text(inner));
                        raw_strings.push(at..at + end + length);
                        end + length
                    }
                    // `b"…"` and `c"…"` are read as strings in the next round; `r#word` as its word.
                    ("b" | "c", _) if after.starts_with('"') => end,
                    ("b", _) if after.starts_with('\'') => end,
                    ("r", _) if after.starts_with('#') => end + 1,
                    _ => {
                        found.push(Token::Word(word));
                        end
                    }
                }
            }
            _ if c.is_ascii_digit() => rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()),
            _ => {
                if !c.is_whitespace() {
                    found.push(Token::Mark(c));
                }
                c.len_utf8()
            }
        };
    }
    (found, raw_strings)
}

#[cfg(test)]
mod tests {
    use super::{Token::*, raw_strings, tokens};

    #[test]
    fn comments_lifetimes_and_characters_are_no_tokens_and_strings_are_one() {
        let table: &[(&str, &[super::Token<'_>])] = &[
            ("a::b // c::d\n", &[Word("a"), Colons, Word("b")]),
            ("/* a /* b */ c */ d", &[Word("d")]),
            ("/* never closed", &[]),
            ("'a: 'b' '\\'' '\\u{1}' '\"' b'x' '_", &[Mark(':')]),
            (r#""a\"b" c"#, &[Text("a\\\"b"), Word("c")]),
            ("r#\"a\"b\"# br\"c\" b\"d\" r#type", &[Text("a\"b"), Text("c"), Text("d"), Word("type")]),
            ("1_000usize 0x1f x1", &[Word("x1")]),
            ("a.b!{}", &[Word("a"), Mark('.'), Word("b"), Mark('!'), Mark('{'), Mark('}')]),
        ];
        for (text, expected) in table {
            assert_eq!(tokens(text), *expected, "{text}");
        }
    }

    #[test]
    fn raw_strings_are_known_from_others() {
        let text = "\"r\" r#\"a\nb\"# b\"c\" br\"d\" // r\"e\"";
        let found: Vec<_> = raw_strings(text).into_iter().map(|place| &text[place]).collect();
        assert_eq!(found, ["r#\"a\nb\"#", "br\"d\""]);
    }
}
