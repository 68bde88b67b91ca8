//! Tokens, for what needs no tree: the layout, and limits checked before parsing.

use std::collections::BTreeSet;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Word,
    /// Quoted text with all that is in it.
    Quoted,
    /// From `<<` to the closing word.
    Heredoc,
    LineComment,
    BlockComment,
    Punct,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
}

impl Token<'_> {
    pub(crate) fn is(&self, punct: &str) -> bool {
        self.kind == Kind::Punct && self.text == punct
    }

    pub(crate) fn bracket(&self) -> i32 {
        match (self.kind, self.text) {
            (Kind::Punct, "{" | "[" | "(") => 1,
            (Kind::Punct, "}" | "]" | ")") => -1,
            _ => 0,
        }
    }
}

const PUNCTS: [&str; 13] = ["...", "&&", "||", "==", "!=", ">=", "<=", "=>", "::", "${", "%{", "\r\n", "//"];

/// Tokens of each line; a token that spans lines stands on the line it begins on.
pub(crate) fn lines(text: &str) -> Vec<Vec<Token<'_>>> {
    let mut lines = vec![Vec::new()];
    // Closing words looked for in vain: looking again from further down would find nothing either.
    let mut unclosed: BTreeSet<&str> = BTreeSet::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let Some(c) = rest.chars().next() else { break };
        let previous: Option<&Token<'_>> = lines.last().and_then(|line: &Vec<Token<'_>>| line.last());
        let (kind, len) = match c {
            '\n' => {
                lines.push(Vec::new());
                at += 1;
                continue;
            }
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '#' => (Kind::LineComment, line_len(rest)),
            '/' if rest.starts_with("//") => (Kind::LineComment, line_len(rest)),
            '/' if rest.starts_with("/*") => (Kind::BlockComment, rest.find("*/").map_or(rest.len(), |i| i + 2)),
            '"' => (Kind::Quoted, quoted_len(rest)),
            '<' if rest.starts_with("<<") && previous.is_some() => match heredoc_len(rest, &mut unclosed) {
                Some(len) => (Kind::Heredoc, len),
                None => (Kind::Punct, 1),
            },
            c if c.is_alphanumeric() || c == '_' => (Kind::Word, word_len(rest)),
            c => {
                let punct = PUNCTS.iter().find(|p| rest.starts_with(**p)).map_or(c.len_utf8(), |p| p.len());
                (Kind::Punct, punct)
            }
        };
        let token = Token { kind, text: rest[..len].trim_end_matches('\r') };
        if let Some(line) = lines.last_mut() {
            line.push(token);
        }
        at += len;
    }
    lines
}

fn line_len(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

/// A word or number; a sign belongs to a number only inside its exponent, a point only before a digit.
fn word_len(text: &str) -> usize {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    let bytes = text.as_bytes();
    let mut previous = ' ';
    for (i, c) in text.char_indices() {
        let digit_follows = bytes.get(i + 1).is_some_and(u8::is_ascii_digit);
        let inside = c.is_alphanumeric()
            || c == '_'
            || (!number && c == '-')
            || (number && c == '.' && digit_follows && !text[..i].contains('.'))
            || (number && matches!(c, '+' | '-') && matches!(previous, 'e' | 'E') && digit_follows);
        if !inside {
            return i;
        }
        previous = c;
    }
    text.len()
}

/// Length of a quoted text including both quotes, templates in it included.
fn quoted_len(text: &str) -> usize {
    // What is open, innermost last: a quote or a brace.
    let mut open: Vec<char> = Vec::new();
    let mut chars = text.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        let quoted = open.last() == Some(&'"');
        match c {
            '"' if quoted => {
                open.pop();
                if open.is_empty() {
                    return i + 1;
                }
            }
            '"' => open.push('"'),
            '\\' if quoted => {
                chars.next();
            }
            '$' | '%' if quoted => {
                let escaped =
                    chars.peek().is_some_and(|(_, next)| *next == c) && text[i + 1..].chars().nth(1) == Some('{');
                if escaped {
                    chars.next();
                    chars.next();
                } else if chars.peek().is_some_and(|(_, next)| *next == '{') {
                    chars.next();
                    open.push('{');
                }
            }
            '{' if !quoted => open.push('{'),
            '}' if !quoted => {
                open.pop();
            }
            _ => {}
        }
    }
    text.len()
}

/// Length of a heredoc up to and including its closing word.
fn heredoc_len<'a>(text: &'a str, unclosed: &mut BTreeSet<&'a str>) -> Option<usize> {
    let head = text[2..].strip_prefix('-').unwrap_or(&text[2..]);
    let word = &head[..line_len(head)];
    let word = word.trim_end_matches('\r');
    if word.is_empty() || !word.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-')) {
        return None;
    }
    if unclosed.contains(word) {
        return None;
    }
    let mut at = line_len(text) + 1;
    for line in text.get(at..)?.split_inclusive('\n') {
        let trimmed = line.trim_start_matches([' ', '\t']);
        if let Some(after) = trimmed.strip_prefix(word)
            && !after.starts_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-'))
        {
            return Some(at + (line.len() - trimmed.len()) + word.len());
        }
        at += line.len();
    }
    unclosed.insert(word);
    None
}
