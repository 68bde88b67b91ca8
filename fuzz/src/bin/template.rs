//! Templates: parsed and rendered over a small world, within bounds.
#![no_main]

use std::sync::Arc;

use template::{
    Limits, Lookup, SecretData, SecretQuery, ServiceName, ServicePlace, ServiceQuery, Settings, Source, Syntax,
    Template, Variable, VariableMeta, VariableQuery,
};

struct World;

impl Source for World {
    fn env(&mut self, name: &str) -> Lookup<Option<String>> {
        Lookup::Known((name == "A").then(|| "a=\"1\"\n{\"k\": [1, 2.5, null]}".to_owned()))
    }

    fn file(&mut self, path: &str) -> Lookup<Vec<u8>> {
        match path {
            "none" => Lookup::Missing,
            "no" => Lookup::Refused("not yours".to_owned()),
            other => Lookup::Known(other.as_bytes().to_vec()),
        }
    }

    fn service(&mut self, _: &ServiceQuery) -> Lookup<Vec<ServicePlace>> {
        Lookup::Known(Vec::new())
    }

    fn service_names(&mut self, _: Option<&str>) -> Lookup<Vec<ServiceName>> {
        Lookup::Known(Vec::new())
    }

    fn variable(&mut self, query: &VariableQuery) -> Lookup<Option<Variable>> {
        let items = [("k".to_owned(), query.path.clone()), (query.path.clone(), String::new())].into();
        let meta = VariableMeta { path: query.path.clone(), ..VariableMeta::default() };
        Lookup::Known((query.path != "none").then_some(Variable { meta, items }))
    }

    fn variables(&mut self, query: &VariableQuery) -> Lookup<Vec<VariableMeta>> {
        Lookup::Known(vec![VariableMeta { path: query.path.clone(), ..VariableMeta::default() }])
    }

    fn secret(&mut self, query: &SecretQuery) -> Lookup<Option<Arc<SecretData>>> {
        let data = query.data.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let secret = SecretData { lease_id: query.path.clone(), data, ..SecretData::default() };
        Lookup::Known((query.path != "none").then(|| Arc::new(secret)))
    }

    fn secret_names(&mut self, path: &str) -> Lookup<Vec<String>> {
        Lookup::Known(vec![path.to_owned()])
    }
}

libfuzzer_sys::fuzz_target!(|text: &str| {
    drop(template::parse_env(text));
    let Ok(template) = Template::parse("t", text, &Syntax::default()) else { return };
    let limits = Limits { output: 1 << 16, allocated: 1 << 20, steps: 20_000, depth: 50 };
    let settings = Settings { error_on_missing_key: false, now_ns: 1_700_000_000_000_000_000, limits };
    drop(template.render(&mut World, &settings));
});
