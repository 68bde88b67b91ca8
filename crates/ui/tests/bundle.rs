//! Modules as one file: what is imported comes first, each once, and what the bundle cannot express is refused.

#[path = "../bundle.rs"]
mod bundle;

use std::collections::BTreeMap;

fn of(files: &[(&str, &str)]) -> Result<bundle::Bundle, String> {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    bundle::bundle("app.js", &|path| files.get(path).map(|text| (*text).to_owned()))
}

#[test]
fn modules_come_once_after_what_they_import_and_vendored_files_stay() {
    let bundle = of(&[
        ("app.js", "import { a } from \"./lib/a.js\";\nimport { b } from \"./pages/b.js\";\na(b);\n"),
        ("lib/a.js", "import htm from \"../vendor/htm.js\";\nexport const a = (x) => htm(x);\nconst own = 1;\n"),
        (
            "pages/b.js",
            "import { a } from \"../lib/a.js\";\nimport { h, k } from \"../vendor/p.js\";\nexport function b() {\n  \
             return import(\"../vendor/x.js\");\n}\n",
        ),
    ])
    .expect("a bundle");
    assert_eq!(bundle.modules, ["lib/a.js", "pages/b.js", "app.js"]);
    assert_eq!(
        bundle.text,
        "import htm from \"./vendor/htm.js\";\nimport { h, k } from \"./vendor/p.js\";\n// lib/a.js\n\
         const $lib_a = (() => {\nconst a = (x) => htm(x);\nconst own = 1;\nreturn { a };\n})();\n// pages/b.js\n\
         const $pages_b = (() => {\nconst { a } = $lib_a;\nfunction b() {\n  return import(\"./vendor/x.js\");\n}\n\
         return { b };\n})();\n// app.js\nconst { a } = $lib_a;\nconst { b } = $pages_b;\na(b);\n"
    );
}

#[test]
fn what_it_cannot_express_ends_the_build() {
    for (line, why) in [
        ("import { a as b } from \"./a.js\";", "app.js:1: an import is one line"),
        ("import * as a from \"./a.js\";", "an import is one line"),
        ("import a from \"./a.js\";", "own modules are imported by name"),
        ("import { a } from \"../../a.js\";", "a file outside web/"),
        ("import { a } from \"./absent.js\";", "absent.js is imported and does not exist"),
        ("import { c } from \"./circle.js\";", "circle.js imports itself by way of app.js, circle.js, back.js"),
        ("export default 1;", "an export is a function, a class or one const"),
        ("export { a };", "an export is a function"),
        ("export const [a, b] = [1, 2];", "an export is a function"),
    ] {
        let circle = ("circle.js", "import { d } from \"./back.js\";\nexport const c = d;\n");
        let back = ("back.js", "import { c } from \"./circle.js\";\nexport const d = c;\n");
        let said = of(&[("app.js", line), ("a.js", "export const a = 1;\n"), circle, back]).expect_err(line);
        assert!(said.contains(why), "{line}: {said}");
    }
}
