//! What the parser can take: room on the stack for deeply nested text, and a limit where it is quadratic.
//!
//! The parser recurses. It refuses more than 64 levels, but 64 levels take megabytes of stack in a build
//! without optimisation, more than a thread of a runtime or a test has. Nearly all texts are flat and are
//! parsed in place; the others get a thread with a stack large enough for anything the parser accepts.

use crate::diag::Diagnostic;
use crate::lexer::{Kind, Token, lines};

/// Enough for the deepest text accepted, four times over.
const STACK: usize = 32 << 20;
/// Levels for which any thread's stack is enough.
const SHALLOW: usize = 12;

/// Runs `parse`, a recursion over `text`, where it has room.
pub(crate) fn with_room<T: Send>(
    text: &str,
    parse: impl FnOnce() -> Result<T, Diagnostic> + Send,
) -> Result<T, Diagnostic> {
    if too_wide(text) {
        return Err(Diagnostic::error("Object too large", format!("an object has more than {KEYS_MAX} keys"))
            .hint("split it, or use jsondecode of a file"));
    }
    if levels_at_most(text) <= SHALLOW {
        return parse();
    }
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("hcl-parse".into()).stack_size(STACK).spawn_scoped(scope, parse);
        match thread.map(std::thread::ScopedJoinHandle::join) {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(e) => Err(Diagnostic::error(
                "Out of resources",
                format!("cannot start a thread to parse deeply nested text: {e}"),
            )),
        }
    })
}

/// An upper bound of the nesting, from a glance: brackets wherever they stand, runs of prefix operators,
/// conditions.
fn levels_at_most(text: &str) -> usize {
    let (mut depth, mut deepest) = (0usize, 0usize);
    let (mut run, mut longest) = (0usize, 0usize);
    let mut others = 0;
    for byte in text.bytes() {
        match byte {
            b'{' | b'[' | b'(' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' | b')' => depth = depth.saturating_sub(1),
            b'?' => others += 1,
            _ => {}
        }
        match byte {
            b'!' | b'-' => {
                run += 1;
                longest = longest.max(run);
            }
            b' ' | b'\t' => {}
            _ => run = 0,
        }
    }
    deepest + longest + others
}

/// Most keys of one object expression. The parser compares each with all before it.
const KEYS_MAX: usize = 8192;

/// Whether there is an object expression with more keys than the parser can take.
fn too_wide(text: &str) -> bool {
    // Every key takes three bytes at least; most texts are out of danger by their size.
    if text.len() < KEYS_MAX * 3 {
        return false;
    }
    // Counts of keys in what is open, innermost last; nothing for what is no object.
    let mut open: Vec<Option<usize>> = Vec::new();
    for line in lines(text) {
        let mut before: Option<Token<'_>> = None;
        for token in line {
            match token.kind {
                Kind::Quoted | Kind::Heredoc if template_too_wide(token.text) => return true,
                Kind::Punct => match token.text {
                    "{" => {
                        let block = before.is_some_and(|t| matches!(t.kind, Kind::Word | Kind::Quoted));
                        open.push((!block).then_some(0));
                    }
                    "[" | "(" => open.push(None),
                    "}" | "]" | ")" => {
                        open.pop();
                    }
                    "=" | ":" => {
                        if let Some(Some(count)) = open.last_mut() {
                            *count += 1;
                            if *count > KEYS_MAX {
                                return true;
                            }
                        }
                    }
                    _ => {}
                },
                _ => {}
            }
            before = Some(token);
        }
    }
    false
}

/// The same for objects inside the interpolations of a text, from a glance.
fn template_too_wide(text: &str) -> bool {
    let mut open: Vec<usize> = Vec::new();
    let bytes = text.as_bytes();
    for (i, byte) in bytes.iter().enumerate() {
        match byte {
            b'{' if !open.is_empty() || (i > 0 && matches!(bytes[i - 1], b'$' | b'%')) => open.push(0),
            b'}' => {
                open.pop();
            }
            b'=' | b':' => {
                if let Some(count) = open.last_mut() {
                    *count += 1;
                    if *count > KEYS_MAX {
                        return true;
                    }
                }
            }
            _ => {}
        }
    }
    false
}
