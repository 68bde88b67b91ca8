//! The grammar.

use winnow::{
    ModalResult, Parser,
    combinator::{alt, cut_err, dispatch, empty, eof, fail, not, opt, peek, preceded, repeat, terminated},
    error::{ContextError, ErrMode, StrContext, StrContextValue},
    stream::{LocatingSlice, Location},
    token::{any, one_of, take_until, take_while},
};

use crate::expr::{Expr, MAX_DEPTH, Names, Operator, Selector, SyntaxError};

type Input<'a> = LocatingSlice<&'a str>;

pub(super) fn parse(text: &str) -> Result<Expr, SyntaxError> {
    let whole = |input: &mut Input<'_>| -> ModalResult<Draft> {
        let expression = preceded(space0, |i: &mut Input<'_>| or(i, 0)).parse_next(input)?;
        (space0, eof.context(expected("\"and\", \"or\" or the end of the filter"))).parse_next(input)?;
        Ok(expression)
    };
    let draft = { whole }.parse(LocatingSlice::new(text)).map_err(|e| {
        let offset = e.offset();
        let wanted: Vec<String> = e
            .inner()
            .context()
            .filter_map(|c| match c {
                StrContext::Expected(v) => Some(v.to_string()),
                _ => None,
            })
            .collect();
        let wanted =
            if wanted.is_empty() { "a selector, a value, \"not\" or \"(\"".to_owned() } else { wanted.join(", ") };
        let found = match text.get(offset..).and_then(|rest| rest.chars().next()) {
            Some(c) => format!("{c:?}"),
            None => "the end".to_owned(),
        };
        SyntaxError::At { offset, expected: format!("no match found, expected: {wanted}; found {found}") }
    })?;
    draft.finish()
}

/// An expression whose patterns are not compiled yet: the grammar backtracks, compiling is done once.
enum Draft {
    And(Box<Draft>, Box<Draft>),
    Or(Box<Draft>, Box<Draft>),
    Not(Box<Draft>),
    Match(Selector, DraftOperator),
    Each { all: bool, selector: Selector, names: Names, body: Box<Draft> },
}

enum DraftOperator {
    Ready(Operator),
    Matches(String),
    NotMatches(String),
}

impl Draft {
    fn finish(self) -> Result<Expr, SyntaxError> {
        Ok(match self {
            Self::And(a, b) => Expr::And(Box::new(a.finish()?), Box::new(b.finish()?)),
            Self::Or(a, b) => Expr::Or(Box::new(a.finish()?), Box::new(b.finish()?)),
            Self::Not(a) => Expr::Not(Box::new(a.finish()?)),
            Self::Each { all, selector, names, body } => {
                Expr::Each { all, selector, names, body: Box::new(body.finish()?) }
            }
            Self::Match(selector, operator) => Expr::Match {
                selector,
                operator: match operator {
                    DraftOperator::Ready(operator) => operator,
                    DraftOperator::Matches(p) => Operator::Matches(compile(&p)?),
                    DraftOperator::NotMatches(p) => Operator::NotMatches(compile(&p)?),
                },
            },
        })
    }
}

fn compile(pattern: &str) -> Result<regex::Regex, SyntaxError> {
    regex::RegexBuilder::new(pattern)
        .size_limit(1 << 20)
        .build()
        .map_err(|e| SyntaxError::Pattern { pattern: pattern.to_owned(), why: e.to_string() })
}

fn expected(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

fn space0(input: &mut Input<'_>) -> ModalResult<()> {
    take_while(0.., (' ', '\t', '\r', '\n')).void().parse_next(input)
}

fn space1(input: &mut Input<'_>) -> ModalResult<()> {
    take_while(1.., (' ', '\t', '\r', '\n')).void().parse_next(input)
}

/// A word of the language: not the beginning of a longer one.
fn word<'a>(text: &'static str) -> impl Parser<Input<'a>, (), ErrMode<ContextError>> {
    (text, not(one_of(|c: char| c.is_ascii_alphanumeric() || c == '_'))).void()
}

fn or(input: &mut Input<'_>, depth: usize) -> ModalResult<Draft> {
    let mut left = and(input, depth)?;
    while opt((space0, word("or"), space0)).parse_next(input)?.is_some() {
        let right = cut_err(|i: &mut Input<'_>| and(i, depth)).parse_next(input)?;
        left = Draft::Or(Box::new(left), Box::new(right));
    }
    Ok(left)
}

fn and(input: &mut Input<'_>, depth: usize) -> ModalResult<Draft> {
    let mut left = negation(input, depth)?;
    while opt((space0, word("and"), space0)).parse_next(input)?.is_some() {
        let right = cut_err(|i: &mut Input<'_>| negation(i, depth)).parse_next(input)?;
        left = Draft::And(Box::new(left), Box::new(right));
    }
    Ok(left)
}

fn negation(input: &mut Input<'_>, depth: usize) -> ModalResult<Draft> {
    if depth > MAX_DEPTH {
        return cut_err(fail.context(expected("less nesting"))).parse_next(input);
    }
    if opt((word("not"), space0)).parse_next(input)?.is_some() {
        let inner = cut_err(|i: &mut Input<'_>| negation(i, depth + 1)).parse_next(input)?;
        return Ok(Draft::Not(Box::new(inner)));
    }
    if opt(('(', space0)).parse_next(input)?.is_some() {
        let close = (space0, ')'.context(expected("\")\"")));
        return cut_err(terminated(|i: &mut Input<'_>| or(i, depth + 1), close)).parse_next(input);
    }
    if let Some(all) =
        opt(terminated(alt((word("any").value(false), word("all").value(true))), space1)).parse_next(input)?
    {
        return cut_err(|i: &mut Input<'_>| each(i, all, depth)).parse_next(input);
    }
    term(input)
}

fn each(input: &mut Input<'_>, all: bool, depth: usize) -> ModalResult<Draft> {
    let selector = selector.context(expected("a selector")).parse_next(input)?;
    (space1, word("as").context(expected("\"as\"")), space1).parse_next(input)?;
    let first = binding.parse_next(input)?;
    let second = opt(preceded((space0, ',', space0), binding)).parse_next(input)?;
    let some = |name: &str| (name != "_").then(|| name.to_owned());
    let names = match second {
        None => Names { single: some(first), ..Names::default() },
        Some(second) => Names { single: None, index: some(first), value: some(second) },
    };
    (space0, '{'.context(expected("\"{\"")), space0).parse_next(input)?;
    let body = or(input, depth + 1)?;
    (space0, '}'.context(expected("\"}\""))).parse_next(input)?;
    Ok(Draft::Each { all, selector, names, body: Box::new(body) })
}

fn binding<'a>(input: &mut Input<'a>) -> ModalResult<&'a str> {
    alt((identifier, word("_").take())).context(expected("a name")).parse_next(input)
}

fn term(input: &mut Input<'_>) -> ModalResult<Draft> {
    alt((selector_first, value_first)).context(expected("a selector or a value")).parse_next(input)
}

fn selector_first(input: &mut Input<'_>) -> ModalResult<Draft> {
    let selector = selector.parse_next(input)?;
    let operator = alt((
        preceded((space0, "=="), cut_err(preceded(space0, value))).map(|v| DraftOperator::Ready(Operator::Equal(v))),
        preceded((space0, "!="), cut_err(preceded(space0, value))).map(|v| DraftOperator::Ready(Operator::NotEqual(v))),
        preceded((space1, word("is"), space1), cut_err(emptiness)).map(DraftOperator::Ready),
        preceded((space1, word("contains")), cut_err(preceded(space0, value)))
            .map(|v| DraftOperator::Ready(Operator::In(v))),
        preceded((space1, word("matches")), cut_err(preceded(space0, value))).map(DraftOperator::Matches),
        preceded((space1, word("not"), space1, word("contains")), cut_err(preceded(space0, value)))
            .map(|v| DraftOperator::Ready(Operator::NotIn(v))),
        preceded((space1, word("not"), space1, word("matches")), cut_err(preceded(space0, value)))
            .map(DraftOperator::NotMatches),
    ))
    .parse_next(input)?;
    Ok(Draft::Match(selector, operator))
}

fn emptiness(input: &mut Input<'_>) -> ModalResult<Operator> {
    let negated = opt((word("not"), space1)).parse_next(input)?.is_some();
    word("empty").context(expected("\"empty\" or \"not empty\"")).parse_next(input)?;
    Ok(if negated { Operator::IsNotEmpty } else { Operator::IsEmpty })
}

fn value_first(input: &mut Input<'_>) -> ModalResult<Draft> {
    let value = value.parse_next(input)?;
    let negated = opt((space1, word("not"))).parse_next(input)?.is_some();
    (space1, word("in").context(expected("an operator (==, !=, in, contains, matches, is empty …)")), space1)
        .parse_next(input)?;
    let selector = cut_err(selector.context(expected("a selector"))).parse_next(input)?;
    Ok(Draft::Match(selector, DraftOperator::Ready(if negated { Operator::NotIn(value) } else { Operator::In(value) })))
}

fn identifier<'a>(input: &mut Input<'a>) -> ModalResult<&'a str> {
    let words =
        not(alt((word("not"), word("and"), word("or"), word("in"), word("is"), word("contains"), word("matches"))));
    preceded(
        words,
        (
            one_of(|c: char| c.is_ascii_alphabetic()),
            take_while(0.., |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/')),
        )
            .take(),
    )
    .parse_next(input)
}

fn selector(input: &mut Input<'_>) -> ModalResult<Selector> {
    let start = *input;
    let parts = alt((pointer, dotted)).parse_next(input)?;
    let text = start.get(..input.current_token_start() - start.current_token_start()).unwrap_or_default().to_owned();
    Ok(Selector { parts, text })
}

fn dotted(input: &mut Input<'_>) -> ModalResult<Vec<String>> {
    let first = identifier.parse_next(input)?.to_owned();
    let part = alt((
        preceded('.', take_while(1.., |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '-')))
            .map(str::to_owned),
        preceded('[', cut_err(terminated(alt((text, digits)), ']'.context(expected("\"]\""))))),
    ));
    repeat::<_, _, Vec<String>, _, _>(0.., part)
        .map(|mut rest| {
            rest.insert(0, first.clone());
            rest
        })
        .parse_next(input)
}

fn digits(input: &mut Input<'_>) -> ModalResult<String> {
    take_while(1.., |c: char| c.is_ascii_digit()).map(str::to_owned).context(expected("a quoted key")).parse_next(input)
}

fn pointer(input: &mut Input<'_>) -> ModalResult<Vec<String>> {
    peek("\"/").parse_next(input)?;
    let pointer = text.parse_next(input)?;
    Ok(pointer[1..].split('/').map(|p| p.replace("~1", "/").replace("~0", "~")).collect())
}

fn value(input: &mut Input<'_>) -> ModalResult<String> {
    alt((text, number, selector.map(|s| s.text))).context(expected("a value")).parse_next(input)
}

fn number(input: &mut Input<'_>) -> ModalResult<String> {
    let digits = || take_while(1.., |c: char| c.is_ascii_digit());
    terminated(
        (opt('-'), digits(), opt(('.', digits()))).take().map(str::to_owned),
        not(one_of(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.')),
    )
    .parse_next(input)
}

/// A quoted text, with the escapes of Go, or a raw one.
fn text(input: &mut Input<'_>) -> ModalResult<String> {
    dispatch! {peek(any);
        '`' => preceded('`',
            cut_err(terminated(take_until(0.., '`'), '`').context(expected("the closing `")))).map(str::to_owned),
        '"' => preceded('"', cut_err(quoted)),
        _ => fail,
    }
    .parse_next(input)
}

fn quoted(input: &mut Input<'_>) -> ModalResult<String> {
    let mut out = String::new();
    loop {
        match any.context(expected("the closing \"")).parse_next(input)? {
            '"' => return Ok(out),
            '\\' => out.push(escape.context(expected("an escape: \\n \\t \\\" \\\\ \\xHH \\uHHHH")).parse_next(input)?),
            c => out.push(c),
        }
    }
}

fn escape(input: &mut Input<'_>) -> ModalResult<char> {
    let hex = |count: usize| {
        take_while(count..=count, |c: char| c.is_ascii_hexdigit())
            .verify_map(|d: &str| u32::from_str_radix(d, 16).ok().and_then(char::from_u32))
    };
    dispatch! {any;
        'n' => empty.value('\n'),
        't' => empty.value('\t'),
        'r' => empty.value('\r'),
        'a' => empty.value('\u{7}'),
        'b' => empty.value('\u{8}'),
        'f' => empty.value('\u{c}'),
        'v' => empty.value('\u{b}'),
        '\\' => empty.value('\\'),
        '"' => empty.value('"'),
        '/' => empty.value('/'),
        'x' => hex(2),
        'u' => hex(4),
        'U' => hex(8),
        _ => fail,
    }
    .parse_next(input)
}
