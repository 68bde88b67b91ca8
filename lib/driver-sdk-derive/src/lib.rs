//! `#[derive(DriverConfig)]` of the driver SDK.
//!
//! For: turning a struct into its configuration schema, with its doc comments, and into the decoder of what arrives.
//! Must never know: the wire. It generates calls of `driver_sdk::derive`, which has the meaning of each type. Use it
//! through `driver_sdk::DriverConfig`, where the attributes are described. Begin reading at [`parse`] for what is
//! accepted, at [`generate`] for what comes out.

mod generate;
mod parse;

use proc_macro::TokenStream;
use syn::{DeriveInput, parse_macro_input};

/// Derives schema and decoder of a configuration; see `driver_sdk::DriverConfig`.
#[proc_macro_derive(DriverConfig, attributes(config))]
pub fn driver_config(input: TokenStream) -> TokenStream {
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

    fn complaint(source: &str) -> String {
        let tokens = derive(&parse_str(source).expect("Rust")).to_string();
        assert!(tokens.contains("compile_error"), "accepted: {source}");
        tokens
    }

    #[test]
    fn misuse_is_refused_by_name() {
        for (source, part) in [
            ("enum A { B }", "named fields"),
            ("struct A(String);", "named fields"),
            ("struct A;", "named fields"),
            ("union A { b: u8 }", "named fields"),
            ("struct A<T> { b: T }", "generic"),
            ("struct A { #[config(defualt = 1)] b: u8 }", "`defualt` is no option of a field"),
            ("#[config(rename = \"x\")] struct A { b: u8 }", "`rename` is no option of a struct"),
            ("struct A { #[config(default = 1, required)] b: u8 }", "`required` and `default`"),
            ("struct A { #[config(default = 1)] b: Option<u8> }", "never absent"),
            ("struct A { #[config(default)] b: std::option::Option<u8> }", "never absent"),
            ("struct A { #[config(required)] b: Option<u8> }", "`Option`"),
            ("struct A { #[config(default = x)] b: u8 }", "a literal"),
            ("struct A { #[config(default = [[1], 2])] b: u8 }", "one level"),
            ("struct A { #[config(default = -\"x\")] b: u8 }", "a literal"),
            ("struct A { #[config(default = 1u8)] b: u8 }", "no suffix"),
            ("struct A { #[config(default = 1, default = 2)] b: u8 }", "given twice"),
            ("struct A { #[config(rename = \"a b\")] b: u8 }", "no name"),
            ("struct A { #[config(rename = \"\")] b: u8 }", "no name"),
            ("struct A { b: u8, #[config(rename = \"b\")] c: u8 }", "two fields are called `b`"),
            ("struct A { #[config(attr = \"string\", block)] b: X }", "`attr` and `block`"),
            ("struct A { #[config(label = \"a b\")] b: X }", "no name"),
            ("struct A { #[config(min_items = 3, max_items = 2)] b: X }", "more than"),
            ("struct A { #[config(min_items = \"1\")] b: X }", "integer"),
        ] {
            let text = complaint(source);
            assert!(text.contains(part), "{source}: {text}");
        }
    }

    #[test]
    fn what_is_right_is_accepted() {
        for source in [
            "struct A {}",
            "struct A { b: Option<u8>, r#type: String }",
            "#[config(default)] struct A { #[config(default = [\"x\"], rename = \"c-d\")] b: Vec<String>, \
                #[serde(skip)] c: u8 }",
            "#[config(default, impl_default)] struct A { #[config(default = 3)] b: u8, #[config(attr = \"number\", \
                default = 1)] c: X, d: u8 }",
            "struct A { #[config(default = -1.5)] b: f64, #[config(attr = \"list(number)\", default = [1, -2])] c: X }",
        ] {
            let tokens = derive(&parse_str(source).expect("Rust")).to_string();
            assert!(!tokens.contains("compile_error"), "{tokens}");
        }
    }
}
