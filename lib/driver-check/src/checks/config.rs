//! The forms in which the values of a task's configuration arrive.

use std::sync::Arc;

use driver_proto::hclspec::spec::Block as Kind;
use rmpv::Value as Pack;

use crate::check::table;
use crate::encode::pack;
use crate::kit::Work;
use crate::lab::Lab;
use crate::outcome::{Outcome, Stop, failed, hold, not_applicable};
use crate::plugin::Plugin;
use crate::task::ended_by_itself;

table! {
    "config/nil", "H44", "options that are not given arrive as nil and are taken for absent",
        "every job that leaves an option out fails at its start: hosts send all of them", nil;
    "config/int-widths", "H44", "an integer is taken in every width, signed and unsigned",
        "a job works with one number and fails with another", int_widths;
    "config/decimal-strings", "H44", "a number that arrives as decimal text is taken",
        "numbers such as 0.1, which hosts cannot send otherwise, fail at the start of the task", decimal_strings;
    "config/text-forms", "H44", "texts are taken in every length form, and as bytes",
        "texts beyond 31 bytes, or from another host, fail at the start of the task", text_forms;
    "config/unknown-key", "C4", "a key that the driver does not know does not disturb it",
        "with an older driver, a configuration written for a newer one cannot even be refused with a clear text by \
            the host", unknown_key;
    "config/junk", "D5", "a task whose configuration cannot be read is refused with a reason, and nothing is \
        left of it",
        "a mistake of one job ends the driver for all, or leaves a task that nobody knows", junk;
}

/// A configuration taken apart.
type Fields = Vec<(Pack, Pack)>;
/// How a text is written.
type Form = fn(&[u8]) -> Vec<u8>;

/// The encoded configuration of a task that ends by itself, taken apart.
fn fields(lab: &Lab) -> Outcome<Fields> {
    let bytes = lab.prepare(Work::Exits)?.config.msgpack_driver_config;
    match rmpv::decode::read_value(&mut bytes.as_slice()) {
        Ok(Pack::Map(fields)) => Ok(fields),
        other => failed(format!("the task's configuration is no map but {other:?}")),
    }
}

/// Names of the attributes of one type that are not required.
fn options(lab: &Lab, wanted: &str) -> Vec<String> {
    let Some(Kind::Object(object)) = lab.profile().task_schema.as_ref().and_then(|spec| spec.block.as_ref()) else {
        return Vec::new();
    };
    let attr = |kind: &Kind| match kind {
        Kind::Attr(attr) => Some(attr.clone()),
        Kind::Default(default) => match default.primary.as_ref()?.block.as_ref()? {
            Kind::Attr(attr) => Some(attr.clone()),
            _ => None,
        },
        _ => None,
    };
    let fitting = object.attributes.iter().filter(|(_, spec)| {
        let attr = spec.block.as_ref().and_then(attr);
        attr.is_some_and(|attr| attr.r#type == wanted && !attr.required)
    });
    fitting.map(|(name, _)| name.clone()).collect()
}

/// Such a task must start and end as any other.
async fn runs(lab: &Lab, plugin: &Plugin, fields: Fields, what: &str) -> Outcome {
    runs_bytes(lab, plugin, pack(&Pack::Map(fields)), what).await
}

async fn runs_bytes(lab: &Lab, plugin: &Plugin, bytes: Vec<u8>, what: &str) -> Outcome {
    let outcome = async {
        let task = lab.start(plugin, lab.prepare_bytes(bytes)?).await?;
        ended_by_itself(&lab.wait(plugin, &task.id).await?)?;
        lab.destroy(plugin, &task.id).await
    };
    match outcome.await {
        Err(Stop::Failed(seen)) => failed(format!("{what}: {seen}")),
        other => other,
    }
}

async fn nil(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let fields = fields(lab)?;
    let given = fields.iter().filter(|(_, value)| *value == Pack::Nil).count();
    if given == 0 {
        return not_applicable("the schema has no option without a default that the suite's task leaves out");
    }
    runs(lab, &plugin, fields, &format!("{given} options as nil")).await
}

/// A field of this type and its value in the suite's task, to be written in other forms.
fn number_field(lab: &Lab) -> Outcome<(String, i64, Fields)> {
    let fields = fields(lab)?;
    let numbers = options(lab, "number");
    // One that the task gives, else one that may be zero like everything that is not given.
    let value =
        |name: &String| fields.iter().find(|(key, _)| key.as_str() == Some(name)).and_then(|(_, value)| value.as_i64());
    let given = numbers.iter().find_map(|name| value(name).filter(|n| (1..128).contains(n)).map(|n| (name.clone(), n)));
    match given.or_else(|| numbers.first().map(|name| (name.clone(), 0))) {
        Some((name, n)) => Ok((name, n, fields)),
        None => not_applicable("the schema of tasks has no optional number"),
    }
}

/// The configuration with one field written by hand.
fn with_raw(fields: &[(Pack, Pack)], name: &str, raw: &[u8]) -> Vec<u8> {
    let kept: Vec<&(Pack, Pack)> = fields.iter().filter(|(key, _)| key.as_str() != Some(name)).collect();
    let mut bytes = vec![0xde];
    bytes.extend(u16::try_from(kept.len() + 1).unwrap_or(u16::MAX).to_be_bytes());
    for (key, value) in kept {
        bytes.extend(pack(key));
        bytes.extend(pack(value));
    }
    bytes.extend(pack(&Pack::from(name)));
    bytes.extend(raw);
    bytes
}

async fn int_widths(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let (name, n, fields) = number_field(lab)?;
    let small = u8::try_from(n).unwrap_or_default();
    let wide = |marker: u8, bytes: &[u8]| [&[marker], bytes].concat();
    let forms = [
        ("a positive fixint", vec![small]),
        ("uint 8", wide(0xcc, &[small])),
        ("uint 16", wide(0xcd, &u16::from(small).to_be_bytes())),
        ("uint 32", wide(0xce, &u32::from(small).to_be_bytes())),
        ("uint 64", wide(0xcf, &u64::from(small).to_be_bytes())),
        ("int 8", wide(0xd0, &[small])),
        ("int 16", wide(0xd1, &i16::from(small).to_be_bytes())),
        ("int 32", wide(0xd2, &i32::from(small).to_be_bytes())),
        ("int 64", wide(0xd3, &i64::from(small).to_be_bytes())),
    ];
    let all = forms.iter().map(|(form, raw)| {
        let bytes = with_raw(&fields, &name, raw);
        let what = format!("option {name:?} = {n} as {form}");
        let plugin = &plugin;
        async move { runs_bytes(lab, plugin, bytes, &what).await }
    });
    futures::future::try_join_all(all).await.map(drop)
}

async fn decimal_strings(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let (name, n, fields) = number_field(lab)?;
    let bytes = with_raw(&fields, &name, &pack(&Pack::from(n.to_string())));
    runs_bytes(lab, &plugin, bytes, &format!("option {name:?} = {n} as text")).await
}

/// The configuration with every text in another form.
fn retold(value: &Pack, form: Form) -> Vec<u8> {
    match value {
        Pack::String(text) => form(text.as_bytes()),
        Pack::Array(items) => {
            let mut bytes = vec![0xdc];
            bytes.extend(u16::try_from(items.len()).unwrap_or(u16::MAX).to_be_bytes());
            bytes.extend(items.iter().flat_map(|item| retold(item, form)));
            bytes
        }
        Pack::Map(fields) => {
            let mut bytes = vec![0xde];
            bytes.extend(u16::try_from(fields.len()).unwrap_or(u16::MAX).to_be_bytes());
            // Keys stay as they are.
            bytes.extend(fields.iter().flat_map(|(key, value)| [pack(key), retold(value, form)].concat()));
            bytes
        }
        other => pack(other),
    }
}

fn long_form(marker: u8, text: &[u8]) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes();
    match marker {
        0xc4 | 0xd9 if text.len() < 256 => [&[marker, length[3]], text].concat(),
        0xc4 => long_form(0xc6, text),
        0xd9 | 0xda if text.len() < 65_536 => [&[0xda], &length[2..], text].concat(),
        0xd9 | 0xda => long_form(0xdb, text),
        other => [&[other], &length[..], text].concat(),
    }
}

async fn text_forms(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let mut fields = fields(lab)?;
    let has_text = |fields: &[(Pack, Pack)]| fields.iter().any(|(_, value)| matches!(value, Pack::String(_)));
    if !has_text(&fields) {
        // An option that says the same as its absence: nothing.
        let Some(name) = options(lab, "string").into_iter().next() else {
            return not_applicable("the schema of tasks has no text");
        };
        fields.retain(|(key, _)| key.as_str() != Some(&name));
        fields.push((Pack::from(name), Pack::from("")));
    }
    let forms: [(&str, Form); 4] = [
        ("str 8", |text| long_form(0xd9, text)),
        ("str 16", |text| long_form(0xda, text)),
        ("str 32", |text| long_form(0xdb, text)),
        ("bin", |text| long_form(0xc4, text)),
    ];
    for (what, form) in forms {
        runs_bytes(lab, &plugin, retold(&Pack::Map(fields.clone()), form), &format!("texts as {what}")).await?;
    }
    Ok(())
}

async fn unknown_key(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    let mut fields = fields(lab)?;
    fields.push((Pack::from("zz_option_of_the_future"), Pack::from("x")));
    runs(lab, &plugin, fields, "with an unknown key").await
}

async fn junk(lab: &Arc<Lab>) -> Outcome {
    let plugin = lab.plugin().await?;
    // Not msgpack, a list instead of a map, and nesting that a careless decoder follows into the end of its stack.
    for (what, bytes) in
        [("unreadable bytes", vec![0xc1]), ("a list", vec![0x91, 0x01]), ("deep nesting", vec![0x91; 200_000])]
    {
        let prepared = lab.prepare_bytes(bytes)?;
        let id = prepared.id().to_owned();
        let request = driver_proto::driver::StartTaskRequest { task: Some(prepared.config) };
        match lab.answer(&plugin, "StartTask", plugin.driver().start_task(request)).await? {
            Ok(_) => {
                drop(lab.destroy(&plugin, &id).await);
                return failed(format!("a task configured with {what} was started"));
            }
            Err(status) => hold!(!status.message().is_empty(), "the refusal of {what} has no text"),
        }
        lab.still_works(&plugin, &format!("a task configured with {what}")).await?;
    }
    Ok(())
}
