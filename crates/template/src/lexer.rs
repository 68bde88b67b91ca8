//! Text and actions of a template as tokens, by the rules of Go's text/template.

use crate::error::Fault;

/// What an action is made of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kind {
    /// Everything outside of actions, trimmed already.
    Text(String),
    LeftDelim,
    RightDelim,
    Space,
    /// `=`
    Assign,
    /// `:=`
    Declare,
    Pipe,
    LeftParen,
    RightParen,
    Comma,
    /// Another character, which no rule allows.
    Char(char),
    /// `.`
    Dot,
    /// `.name`, without its dot.
    Field(String),
    /// `$` or `$name`, with the dollar.
    Variable(String),
    Identifier(String),
    Keyword(Keyword),
    Bool(bool),
    Nil,
    Str(Vec<u8>),
    /// As written.
    Number(String),
    /// Value of a character constant.
    Rune(char),
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyword {
    Block,
    Break,
    Continue,
    Define,
    Else,
    End,
    If,
    Range,
    Template,
    With,
}

#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) at: usize,
    pub(crate) kind: Kind,
}

const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

struct Lexer<'a> {
    input: &'a str,
    left: &'a str,
    right: &'a str,
    at: usize,
    parens: usize,
    out: Vec<Token>,
}

/// The tokens, closed by one of kind [`Kind::End`].
pub(crate) fn tokens(input: &str, left: &str, right: &str) -> Result<Vec<Token>, Fault> {
    let mut lexer = Lexer { input, left, right, at: 0, parens: 0, out: Vec::new() };
    lexer.text()?;
    lexer.push(input.len(), Kind::End);
    Ok(lexer.out)
}

impl Lexer<'_> {
    fn push(&mut self, at: usize, kind: Kind) {
        self.out.push(Token { at, kind });
    }

    fn rest(&self) -> &str {
        &self.input[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn accept(&mut self, set: &str) -> bool {
        let found = self.peek().is_some_and(|c| set.contains(c));
        if found {
            self.bump();
        }
        found
    }

    fn run(&mut self, set: &str) {
        while self.accept(set) {}
    }

    /// Is the end of the action here, and does it trim what follows?
    fn closing(&self) -> Option<bool> {
        let rest = self.rest();
        let mut chars = rest.chars();
        if chars.next().is_some_and(|c| SPACES.contains(&c))
            && chars.next() == Some('-')
            && rest[2..].starts_with(self.right)
        {
            return Some(true);
        }
        rest.starts_with(self.right).then_some(false)
    }

    fn close(&mut self, trim: bool) {
        if trim {
            self.at += 2;
        }
        self.push(self.at, Kind::RightDelim);
        self.after_close(trim);
    }

    fn after_close(&mut self, trim: bool) {
        self.at += self.right.len();
        if trim {
            self.at += self.rest().len() - self.rest().trim_start_matches(SPACES).len();
        }
    }

    fn text(&mut self) -> Result<(), Fault> {
        loop {
            let start = self.at;
            let Some(found) = self.rest().find(self.left) else {
                let text = self.rest().to_owned();
                if !text.is_empty() {
                    self.push(start, Kind::Text(text));
                }
                self.at = self.input.len();
                return Ok(());
            };
            let mut text = &self.input[start..start + found];
            let after = start + found + self.left.len();
            let mut marker = self.input[after..].chars();
            let trims = marker.next() == Some('-') && marker.next().is_some_and(|c| SPACES.contains(&c));
            if trims {
                text = text.trim_end_matches(SPACES);
            }
            if !text.is_empty() {
                self.push(start, Kind::Text(text.to_owned()));
            }
            self.at = after + if trims { 2 } else { 0 };
            if self.rest().starts_with("/*") {
                self.comment()?;
                continue;
            }
            self.push(start + found, Kind::LeftDelim);
            self.parens = 0;
            self.action(start + found)?;
        }
    }

    fn comment(&mut self) -> Result<(), Fault> {
        let start = self.at;
        let Some(end) = self.rest().find("*/") else {
            return Err(Fault::new(
                start,
                "this comment is not closed; a comment ends with */ before the right delimiter",
            ));
        };
        self.at += end + 2;
        let Some(trim) = self.closing() else {
            return Err(Fault::new(self.at, "a comment must end right before the right delimiter"));
        };
        if trim {
            self.at += 2;
        }
        self.after_close(trim);
        Ok(())
    }

    fn action(&mut self, opened: usize) -> Result<(), Fault> {
        loop {
            let at = self.at;
            if let Some(trim) = self.closing() {
                if self.parens > 0 {
                    return Err(Fault::new(at, "a left parenthesis is not closed"));
                }
                self.close(trim);
                return Ok(());
            }
            let Some(c) = self.bump() else {
                return Err(Fault::new(opened, format!("this action is not closed with {:?}", self.right)));
            };
            match c {
                c if SPACES.contains(&c) => {
                    while self.peek().is_some_and(|c| SPACES.contains(&c)) && self.closing() != Some(true) {
                        self.bump();
                    }
                    self.push(at, Kind::Space);
                }
                '=' => self.push(at, Kind::Assign),
                ':' => {
                    if !self.accept("=") {
                        return Err(Fault::new(at, "expected := here"));
                    }
                    self.push(at, Kind::Declare);
                }
                '|' => self.push(at, Kind::Pipe),
                ',' => self.push(at, Kind::Comma),
                '"' => self.quoted(at)?,
                '`' => {
                    let Some(end) = self.rest().find('`') else {
                        return Err(Fault::new(at, "this raw string is not closed with `"));
                    };
                    // Go drops carriage returns from raw strings.
                    let raw: Vec<u8> = self.rest()[..end].bytes().filter(|b| *b != b'\r').collect();
                    self.at += end + 1;
                    self.push(at, Kind::Str(raw));
                }
                '$' => {
                    let name = self.word(at);
                    self.terminated(at)?;
                    self.push(at, Kind::Variable(name));
                }
                '\'' => self.rune(at)?,
                '.' if !self.peek().is_some_and(|c| c.is_ascii_digit()) => {
                    let name = self.word(at + 1);
                    self.terminated(at)?;
                    self.push(at, if name.is_empty() { Kind::Dot } else { Kind::Field(name) });
                }
                c if c == '.' || c == '+' || c == '-' || c.is_ascii_digit() => {
                    self.at = at;
                    self.number(at)?;
                }
                c if is_word(c) => {
                    let word = self.word(at);
                    self.terminated(at)?;
                    self.push(at, classify(word));
                }
                '(' => {
                    self.parens += 1;
                    self.push(at, Kind::LeftParen);
                }
                ')' => {
                    if self.parens == 0 {
                        return Err(Fault::new(at, "this right parenthesis closes nothing"));
                    }
                    self.parens -= 1;
                    self.push(at, Kind::RightParen);
                }
                c if c.is_ascii_graphic() => self.push(at, Kind::Char(c)),
                c => return Err(Fault::new(at, format!("the character {c:?} has no meaning in an action"))),
            }
        }
    }

    /// The text from `from` to the end of the word that the lexer stands in.
    fn word(&mut self, from: usize) -> String {
        while self.peek().is_some_and(is_word) {
            self.bump();
        }
        self.input[from..self.at].to_owned()
    }

    fn terminated(&self, at: usize) -> Result<(), Fault> {
        let Some(c) = self.peek() else { return Ok(()) };
        if SPACES.contains(&c) || ".,|:()".contains(c) || self.rest().starts_with(self.right) {
            return Ok(());
        }
        Err(Fault::new(
            at,
            format!("{:?} is followed by {c:?}, which cannot be part of a name", &self.input[at..self.at]),
        ))
    }

    fn quoted(&mut self, at: usize) -> Result<(), Fault> {
        let mut out = Vec::new();
        loop {
            match self.bump() {
                Some('"') => break,
                Some('\n') | None => {
                    return Err(Fault::new(at, "this string is not closed; use ` for strings of several lines"));
                }
                Some('\\') => match self.escape('"')? {
                    Escape::Byte(b) => out.push(b),
                    Escape::Char(c) => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
                },
                Some(c) => out.extend(c.encode_utf8(&mut [0; 4]).bytes()),
            }
        }
        self.push(at, Kind::Str(out));
        Ok(())
    }

    fn rune(&mut self, at: usize) -> Result<(), Fault> {
        let wrong =
            || Fault::new(at, "a character constant holds one character, as in 'x'; strings are written with \"");
        let c = match self.bump() {
            Some('\\') => match self.escape('\'')? {
                Escape::Byte(b) => char::from(b),
                Escape::Char(c) => c,
            },
            Some(c) if c != '\'' && c != '\n' => c,
            _ => return Err(wrong()),
        };
        if self.bump() != Some('\'') {
            return Err(wrong());
        }
        self.push(at, Kind::Rune(c));
        Ok(())
    }

    fn digits(&mut self, count: usize, radix: u32, first: Option<char>) -> Result<u32, Fault> {
        let at = self.at;
        let mut value = first.and_then(|c| c.to_digit(radix)).unwrap_or(0);
        for _ in 0..count {
            let digit = self.bump().and_then(|c| c.to_digit(radix));
            let digit = digit.ok_or_else(|| Fault::new(at, "this escape sequence has too few digits"))?;
            value = value * radix + digit;
        }
        Ok(value)
    }

    fn escape(&mut self, quote: char) -> Result<Escape, Fault> {
        let at = self.at;
        let wrong = |what: &str| Fault::new(at, format!("no such escape sequence: {what}"));
        let simple = |b: u8| Ok(Escape::Byte(b));
        match self.bump() {
            Some('a') => simple(7),
            Some('b') => simple(8),
            Some('f') => simple(12),
            Some('n') => simple(b'\n'),
            Some('r') => simple(b'\r'),
            Some('t') => simple(b'\t'),
            Some('v') => simple(11),
            Some('\\') => simple(b'\\'),
            Some(c) if c == quote => Ok(Escape::Char(c)),
            Some('x') => Ok(Escape::Byte(u8::try_from(self.digits(2, 16, None)?).unwrap_or_default())),
            Some(c @ '0'..='7') => {
                let value = self.digits(2, 8, Some(c))?;
                u8::try_from(value).map(Escape::Byte).map_err(|_| wrong("an octal byte is at most \\377"))
            }
            Some(u @ ('u' | 'U')) => {
                let value = self.digits(if u == 'u' { 4 } else { 8 }, 16, None)?;
                char::from_u32(value).map(Escape::Char).ok_or_else(|| wrong("there is no such character"))
            }
            Some(c) => Err(wrong(&format!("\\{c}"))),
            None => Err(wrong("\\ at the end")),
        }
    }

    fn number(&mut self, at: usize) -> Result<(), Fault> {
        self.accept("+-");
        let (mut digits, mut decimal, mut hex) = ("0123456789_", true, false);
        if self.accept("0") {
            if self.accept("xX") {
                (digits, decimal, hex) = ("0123456789abcdefABCDEF_", false, true);
            } else if self.accept("oO") {
                (digits, decimal) = ("01234567_", false);
            } else if self.accept("bB") {
                (digits, decimal) = ("01_", false);
            }
        }
        self.run(digits);
        if self.accept(".") {
            self.run(digits);
        }
        if decimal && self.accept("eE") || hex && self.accept("pP") {
            self.accept("+-");
            self.run("0123456789_");
        }
        if self.peek() == Some('i') || self.peek().is_some_and(|c| "+-".contains(c)) {
            return Err(Fault::new(at, "complex numbers are not supported"));
        }
        if self.peek().is_some_and(is_word) {
            self.bump();
            return Err(Fault::new(at, format!("{:?} is not a number", &self.input[at..self.at])));
        }
        self.push(at, Kind::Number(self.input[at..self.at].to_owned()));
        Ok(())
    }
}

enum Escape {
    Byte(u8),
    Char(char),
}

fn classify(word: String) -> Kind {
    Kind::Keyword(match word.as_str() {
        "true" => return Kind::Bool(true),
        "false" => return Kind::Bool(false),
        "nil" => return Kind::Nil,
        "block" => Keyword::Block,
        "break" => Keyword::Break,
        "continue" => Keyword::Continue,
        "define" => Keyword::Define,
        "else" => Keyword::Else,
        "end" => Keyword::End,
        "if" => Keyword::If,
        "range" => Keyword::Range,
        "template" => Keyword::Template,
        "with" => Keyword::With,
        _ => return Kind::Identifier(word),
    })
}
