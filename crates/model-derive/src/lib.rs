//! `#[derive(Described)]` of the model: what job files, defaults, updates and the reference need to know of a block.
//!
//! For: turning a struct with its serde names, doc comments and `#[job(…)]` into the table `model::schema::Block`, the
//! filling of its
//! defaults, and the answer to "does this change replace the allocation?".
//! Must never know: what the blocks mean. Begin reading at `model::schema`, which describes the attributes; [`parse`]
//! has what is accepted,
//! [`generate`] what comes out.

mod generate;
mod parse;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Derives the description of a block; see `model::schema`.
#[proc_macro_derive(Described, attributes(job))]
pub fn described(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    derive(&input).into()
}

fn derive(input: &DeriveInput) -> proc_macro2::TokenStream {
    match parse::struct_of(input) {
        Ok(parsed) => generate::implementation(&parsed),
        Err(error) => error.to_compile_error(),
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_str;

    use super::*;

    #[test]
    fn misuse_is_refused_by_name() {
        for (source, part) in [
            ("enum A { B }", "named fields"),
            ("struct A<T> { b: T }", "generic"),
            ("struct A { #[job(defualt = 1)] b: u8 }", "`defualt` is no option of a field"),
            ("#[job(rename)] struct A { b: u8 }", "`rename` is no option of a block"),
            ("#[job(decides)] struct A { /** B. */ #[job(default = 1)] b: u8 }", "in_place"),
            ("#[job(decides)] struct A { /** B. */ #[job(in_place, replaces)] b: u8 }", "one of"),
            ("struct A { /** B. */ #[job(default = \"soon\")] b: Option<GoDuration> }", "duration"),
            ("struct A { b: u8 }", "doc comment"),
        ] {
            let text = derive(&parse_str(source).expect("Rust")).to_string();
            assert!(text.contains("compile_error") && text.contains(part), "{source}: {text}");
        }
    }

    #[test]
    fn names_are_those_of_serde_and_of_the_field() {
        let source = r#"
            /// A block.
            #[serde(default, rename_all = "PascalCase")]
            struct A {
                /// How long.
                #[job(default = "1m30s")]
                kill_timeout: Option<GoDuration>,
                /// Size.
                #[serde(rename = "SizeMB", skip_serializing_if = "Option::is_none")]
                #[job(hcl = "size")]
                size_mb: Option<i64>,
            }"#;
        let text = derive(&parse_str(source).expect("Rust")).to_string();
        for part in ["\"kill_timeout\"", "\"KillTimeout\"", "90000000000i64", "\"size\"", "\"SizeMB\"", "\"How long.\""]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
